// A picture as a list of shapes, written as SVG or painted as PNG: the same shapes, so the two agree.

/**
 * @typedef {{kind: "rect", x: number, y: number, width: number, height: number, fill: string, radius: number, stroke: string}} Rect
 * @typedef {{kind: "path", d: string, stroke: string, width: number, opacity: number, dash: string}} Path
 * @typedef {{kind: "text", x: number, y: number, text: string, size: number, anchor: "start" | "middle" | "end", fill: string, family: string, weight: number, turn: number}} Text
 * @typedef {{kind: "image", x: number, y: number, width: number, height: number, canvas: HTMLCanvasElement}} Image
 * @typedef {{kind: "clip", x: number, y: number, width: number, height: number, id: string}} Clip  until its end
 * @typedef {{kind: "end"}} End
 * @typedef {Rect | Path | Text | Image | Clip | End} Shape
 */

export const SANS = '"Noto Sans", "DejaVu Sans", system-ui, sans-serif';

export class Figure {
  /**
   * @param {number} width
   * @param {number} height
   * @param {{paper: string, ink: string, soft: string}} palette
   * @param {string} title  what the picture is, for those who do not see it
   */
  constructor(width, height, palette, title) {
    this.width = width;
    this.height = height;
    this.palette = palette;
    this.title = title;
    /** @type {Shape[]} */
    this.shapes = [];
  }

  /**
   * @param {number} x @param {number} y @param {number} width @param {number} height
   * @param {string} fill @param {{radius?: number, stroke?: string}} [more]
   */
  rect(x, y, width, height, fill, { radius = 0, stroke = "" } = {}) {
    this.shapes.push({ kind: "rect", x, y, width, height, fill, radius, stroke });
  }

  /**
   * @param {string} d @param {string} stroke @param {number} width
   * @param {{opacity?: number, dash?: string}} [more]
   */
  path(d, stroke, width, { opacity = 1, dash = "" } = {}) {
    this.shapes.push({ kind: "path", d, stroke, width, opacity, dash });
  }

  /**
   * @param {number} x @param {number} y  of the baseline
   * @param {string} text
   * @param {{size?: number, anchor?: "start" | "middle" | "end", fill?: string, family?: string, weight?: number, turn?: number}} [more]
   */
  text(x, y, text, { size = 12, anchor = "start", fill = this.palette.ink, family = SANS, weight = 400, turn = 0 } = {}) {
    this.shapes.push({ kind: "text", x, y, text, size, anchor, fill, family, weight, turn });
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {HTMLCanvasElement} canvas */
  image(x, y, width, height, canvas) {
    this.shapes.push({ kind: "image", x, y, width, height, canvas });
  }

  /** What `draw` draws, and of it only what is in the box. @param {number} x @param {number} y @param {number} width @param {number} height @param {() => void} draw */
  within(x, y, width, height, draw) {
    this.shapes.push({ kind: "clip", x, y, width, height, id: `clip${this.shapes.length}` });
    draw();
    this.shapes.push({ kind: "end" });
  }

  /**
   * Lines of small print below what is there; the picture grows by them.
   * @param {string[]} lines
   */
  caption(lines) {
    const room = Math.max(24, Math.floor((this.width - 32) / 6.2)); // of characters at 11.5 px
    for (const line of lines.flatMap((whole) => wrapped(whole, room))) {
      this.height += 17;
      this.text(16, this.height - 6, line, { size: 11.5, fill: this.palette.soft });
    }
    this.height += 8;
  }

  /** @returns {string} */
  toSvg() {
    const size = `width="${round(this.width)}" height="${round(this.height)}" viewBox="0 0 ${round(this.width)} ${round(this.height)}"`;
    const head = `<svg xmlns="http://www.w3.org/2000/svg" ${size} role="img">`;
    const title = `<title>${escaped(this.title)}</title>`;
    const paper = `<rect width="100%" height="100%" fill="${escaped(this.palette.paper)}"/>`;
    return [head, title, paper, ...this.shapes.map(markup), "</svg>"].join("\n") + "\n";
  }

  /**
   * @param {number} [dots]  pixels of the picture for one of the page
   * @returns {HTMLCanvasElement}
   */
  toCanvas(dots = 2) {
    const canvas = document.createElement("canvas");
    canvas.width = Math.ceil(this.width * dots);
    canvas.height = Math.ceil(this.height * dots);
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.scale(dots, dots);
    context.fillStyle = this.palette.paper;
    context.fillRect(0, 0, this.width, this.height);
    for (const shape of this.shapes) paint(context, shape);
    return canvas;
  }
}

/** @param {number} value */
const round = (value) => Number(value.toFixed(2));

/**
 * Text as XML holds it; what XML cannot hold at all becomes the sign for it.
 * @param {string} text
 * @returns {string}
 */
export function escaped(text) {
  /** @type {Record<string, string>} */
  const names = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  return text
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, (char) => String.fromCodePoint(0x2400 + char.charCodeAt(0)))
    .replace(/[\ufffe\uffff]|\p{Cs}/gu, "\ufffd")
    .replace(/[&<>"]/g, (char) => names[char]);
}

/** @param {Shape} shape @returns {string} */
function markup(shape) {
  if (shape.kind === "rect") {
    const { x, y, width, height, fill, radius, stroke } = shape;
    const more = (radius ? ` rx="${radius}"` : "") + (stroke ? ` stroke="${escaped(stroke)}"` : "");
    return `<rect x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}" fill="${escaped(fill || "none")}"${more}/>`;
  }
  if (shape.kind === "path") {
    const { d, stroke, width, opacity, dash } = shape;
    const more = (opacity < 1 ? ` opacity="${round(opacity)}"` : "") + (dash ? ` stroke-dasharray="${dash}"` : "");
    return `<path d="${d}" fill="none" stroke="${escaped(stroke)}" stroke-width="${round(width)}" stroke-linecap="round"${more}/>`;
  }
  if (shape.kind === "text") {
    const { x, y, text, size, anchor, fill, family, weight, turn } = shape;
    const place = `x="${round(x)}" y="${round(y)}"`;
    const more =
      (anchor === "start" ? "" : ` text-anchor="${anchor}"`) +
      (weight === 400 ? "" : ` font-weight="${weight}"`) +
      (turn ? ` transform="rotate(${turn} ${round(x)} ${round(y)})"` : "");
    return `<text ${place} font-family="${escaped(family)}" font-size="${size}" fill="${escaped(fill)}" xml:space="preserve"${more}>${escaped(text)}</text>`;
  }
  if (shape.kind === "clip") {
    const { x, y, width, height, id } = shape;
    return `<clipPath id="${id}"><rect x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}"/></clipPath><g clip-path="url(#${id})">`;
  }
  if (shape.kind === "end") return "</g>";
  const { x, y, width, height, canvas } = shape;
  return `<image x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}" style="image-rendering:pixelated" preserveAspectRatio="none" href="${canvas.toDataURL("image/png")}"/>`;
}

/** @param {CanvasRenderingContext2D} context @param {Shape} shape */
function paint(context, shape) {
  if (shape.kind === "end") return context.restore();
  context.save();
  if (shape.kind === "clip") {
    context.beginPath();
    context.rect(shape.x, shape.y, shape.width, shape.height);
    return context.clip();
  }
  if (shape.kind === "rect") {
    const { x, y, width, height, fill, radius, stroke } = shape;
    context.beginPath();
    context.roundRect(x, y, width, height, radius);
    if (fill) {
      context.fillStyle = fill;
      context.fill();
    }
    if (stroke) {
      context.strokeStyle = stroke;
      context.stroke();
    }
  } else if (shape.kind === "path") {
    context.globalAlpha = shape.opacity;
    context.strokeStyle = shape.stroke;
    context.lineWidth = shape.width;
    context.lineCap = "round";
    if (shape.dash) context.setLineDash(shape.dash.split(" ").map(Number));
    context.stroke(new Path2D(shape.d));
  } else if (shape.kind === "text") {
    context.translate(shape.x, shape.y);
    context.rotate((shape.turn * Math.PI) / 180);
    context.font = `${shape.weight} ${shape.size}px ${shape.family}`;
    context.textAlign = /** @type {CanvasTextAlign} */ ({ start: "left", middle: "center", end: "right" }[shape.anchor]);
    context.fillStyle = shape.fill;
    context.fillText(shape.text, 0, 0);
  } else {
    context.imageSmoothingEnabled = false;
    context.drawImage(shape.canvas, shape.x, shape.y, shape.width, shape.height);
  }
  context.restore();
}

/**
 * A line cut at spaces into lines of at most `room` characters, where words allow it.
 * @param {string} line
 * @param {number} room
 * @returns {string[]}
 */
export function wrapped(line, room) {
  /** @type {string[]} */
  const lines = [];
  let rest = line;
  while (rest.length > room) {
    const space = rest.lastIndexOf(" ", room);
    const end = space > 0 ? space : room;
    lines.push(rest.slice(0, end));
    rest = rest.slice(end).trimStart();
  }
  return [...lines, rest];
}
