// The same drawing on a canvas and as SVG: a picture draws with a pen and does not know which.

/**
 * @typedef {object} Pen
 * @property {(x: number, y: number, w: number, h: number, fill: string) => void} box
 * @property {(x: number, y: number, w: number, h: number, stroke: string, width: number) => void} frame
 * @property {(x: number, y: number, w: number, h: number) => void} hatch  the sign of what the mask hides
 * @property {(text: string, x: number, y: number, how: TextStyle) => void} text
 * @property {(image: HTMLCanvasElement, from: Box, to: Box) => void} image  without smoothing
 * @property {(x: number, y: number, w: number, h: number, draw: () => void) => void} within  nothing outside is drawn
 *
 * @typedef {[x: number, y: number, w: number, h: number]} Box
 *
 * `size` in pixels; `turn` in degrees around the text's start; `weight` of the letters.
 * @typedef {{colour: string, size: number, align?: "start" | "middle" | "end", turn?: number, weight?: number}} TextStyle
 */

export const FONT = 'system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif';

/** @param {number} size @param {number} [weight] */
export const fontOf = (size, weight = 400) => `${weight} ${size}px ${FONT}`;

const HATCH = 6; // pixels between its lines

/** @implements {Pen} */
export class CanvasPen {
  /**
   * @param {CanvasRenderingContext2D} context  already scaled to the screen's dots
   * @param {import("./colour.js").Palette} palette
   */
  constructor(context, palette) {
    this.context = context;
    this.palette = palette;
    this.dots = context.getTransform().a;
    this.font = "";
    /** @type {CanvasPattern | null} */
    this.pattern = null;
  }

  /** @type {Pen["box"]} */
  box(x, y, w, h, fill) {
    this.context.fillStyle = fill;
    this.context.fillRect(x, y, w, h);
  }

  /** @type {Pen["frame"]} */
  frame(x, y, w, h, stroke, width) {
    this.context.strokeStyle = stroke;
    this.context.lineWidth = width;
    this.context.strokeRect(x, y, w, h);
  }

  /** @type {Pen["hatch"]} */
  hatch(x, y, w, h) {
    const { context } = this;
    this.pattern ??= hatchPattern(context, this.palette, this.dots);
    this.pattern.setTransform(new DOMMatrix().translateSelf(x, y).scaleSelf(1 / this.dots));
    context.fillStyle = this.pattern;
    context.fillRect(x, y, w, h);
  }

  /** @type {Pen["text"]} */
  text(text, x, y, { colour, size, align = "start", turn = 0, weight = 400 }) {
    const { context } = this;
    const font = fontOf(size, weight);
    if (this.font !== font) this.font = context.font = font;
    context.fillStyle = colour;
    context.textAlign = align === "middle" ? "center" : align === "end" ? "right" : "left";
    context.textBaseline = "middle";
    if (!turn) {
      context.fillText(text, x, y);
      return;
    }
    context.save();
    context.translate(x, y);
    context.rotate((turn * Math.PI) / 180);
    context.fillText(text, 0, 0);
    context.restore();
  }

  /** @type {Pen["image"]} */
  image(image, from, to) {
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(image, ...from, ...to);
  }

  /** @type {Pen["within"]} */
  within(x, y, w, h, draw) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, w, h);
    this.context.clip();
    draw();
    this.context.restore();
    this.font = "";
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {import("./colour.js").Palette} palette
 * @param {number} dots
 */
function hatchPattern(context, palette, dots) {
  const side = Math.round(HATCH * dots);
  const square = document.createElement("canvas");
  square.width = square.height = side;
  const inner = /** @type {CanvasRenderingContext2D} */ (square.getContext("2d"));
  inner.fillStyle = palette.hidden[0];
  inner.fillRect(0, 0, side, side);
  inner.strokeStyle = palette.hidden[1];
  inner.lineWidth = dots;
  inner.beginPath();
  for (const shift of [-side, 0, side]) {
    inner.moveTo(shift - dots, side + dots);
    inner.lineTo(shift + side + dots, -dots);
  }
  inner.stroke();
  return /** @type {CanvasPattern} */ (context.createPattern(square, "repeat"));
}

/** @param {string} text */
const escaped = (text) =>
  // what XML cannot hold at all has been given signs before (units.js)
  text.replace(/[&<>"]/g, (char) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[char] ?? char);

/** @param {number} value */
const short = (value) => String(Number(value.toFixed(2)));

/** @implements {Pen} */
export class SvgPen {
  /** @param {import("./colour.js").Palette} palette */
  constructor(palette) {
    this.palette = palette;
    /** @type {string[]} */
    this.parts = [];
    this.clips = 0;
  }

  /** @type {Pen["box"]} */
  box(x, y, w, h, fill) {
    this.parts.push(`<rect ${place(x, y, w, h)} fill="${fill}"/>`);
  }

  /** @type {Pen["frame"]} */
  frame(x, y, w, h, stroke, width) {
    this.parts.push(`<rect ${place(x, y, w, h)} fill="none" stroke="${stroke}" stroke-width="${short(width)}"/>`);
  }

  /** @type {Pen["hatch"]} */
  hatch(x, y, w, h) {
    this.parts.push(`<rect ${place(x, y, w, h)} fill="url(#hidden)"/>`);
  }

  /** @type {Pen["text"]} */
  text(text, x, y, { colour, size, align = "start", turn = 0, weight = 400 }) {
    const turned = turn ? ` transform="rotate(${short(turn)} ${short(x)} ${short(y)})"` : "";
    const look = `fill="${colour}" font-size="${short(size)}" font-weight="${weight}" text-anchor="${align}"`;
    this.parts.push(`<text x="${short(x)}" y="${short(y)}" dominant-baseline="central" ${look}${turned}>${escaped(text)}</text>`);
  }

  /** Cells as rectangles that every program draws sharp, runs of one colour joined; many cells as one picture. @type {Pen["image"]} */
  image(image, [sx, sy, sw, sh], [x, y, w, h]) {
    const [left, top] = [Math.floor(sx), Math.floor(sy)];
    const [columns, rows] = [Math.ceil(sx + sw) - left, Math.ceil(sy + sh) - top];
    const context = /** @type {CanvasRenderingContext2D} */ (image.getContext("2d"));
    const [cellWidth, cellHeight] = [w / sw, h / sh];
    const at = (/** @type {number} */ column, /** @type {number} */ row) => [x + (left + column - sx) * cellWidth, y + (top + row - sy) * cellHeight];
    if (rows * columns > MOST_RECTANGLES) {
      const part = document.createElement("canvas");
      part.width = columns;
      part.height = rows;
      /** @type {CanvasRenderingContext2D} */ (part.getContext("2d")).drawImage(image, -left, -top);
      const [px, py] = at(0, 0);
      const size = place(px, py, columns * cellWidth, rows * cellHeight);
      this.parts.push(`<image ${size} preserveAspectRatio="none" style="image-rendering:pixelated" href="${part.toDataURL()}"/>`);
      return;
    }
    const pixels = new Uint32Array(context.getImageData(left, top, columns, rows).data.buffer);
    for (let row = 0; row < rows; row++) {
      for (let column = 0, end = 0; column < columns; column = end) {
        const pixel = pixels[row * columns + column];
        for (end = column + 1; end < columns && pixels[row * columns + end] === pixel; ) end++;
        if (pixel >>> 24 === 0) continue;
        const [px, py] = at(column, row);
        const hex = [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255].map((c) => c.toString(16).padStart(2, "0")).join("");
        this.parts.push(`<rect ${place(px, py, (end - column) * cellWidth, cellHeight)} fill="#${hex}" shape-rendering="crispEdges"/>`);
      }
    }
  }

  /** @type {Pen["within"]} */
  within(x, y, w, h, draw) {
    const id = `clip${this.clips++}`;
    this.parts.push(`<clipPath id="${id}"><rect ${place(x, y, w, h)}/></clipPath><g clip-path="url(#${id})">`);
    draw();
    this.parts.push("</g>");
  }

  /**
   * The whole as a file.
   * @param {number} width
   * @param {number} height
   * @param {string} title
   */
  document(width, height, title) {
    const [ground, lines] = this.palette.hidden;
    const line = `<path d="M-1 ${HATCH + 1}L${HATCH + 1} -1M-1 1L1 -1M${HATCH - 1} ${HATCH + 1}L${HATCH + 1} ${HATCH - 1}" stroke="${lines}"/>`;
    const hatch = `<pattern id="hidden" width="${HATCH}" height="${HATCH}" patternUnits="userSpaceOnUse"><rect width="${HATCH}" height="${HATCH}" fill="${ground}"/>${line}</pattern>`;
    const head = `<svg xmlns="http://www.w3.org/2000/svg" width="${short(width)}" height="${short(height)}" viewBox="0 0 ${short(width)} ${short(height)}" font-family="${escaped(FONT)}" role="img">`;
    return `${head}\n<title>${escaped(title)}</title>\n<defs>${hatch}</defs>\n${this.parts.join("\n")}\n</svg>\n`;
  }
}

const MOST_RECTANGLES = 20000;

/** @param {number} x @param {number} y @param {number} w @param {number} h */
const place = (x, y, w, h) => `x="${short(x)}" y="${short(y)}" width="${short(w)}" height="${short(h)}"`;
