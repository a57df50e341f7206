// What is seen of a view as a figure: its texts, grounds, bars, curves and pictures where they stand.

import { Figure } from "./figure.js";

/** @typedef {import("./colour.js").Palette} Palette */

/** @typedef {{left: number, top: number, right: number, bottom: number}} Box */

const MARGIN = 16;
const TALL = 4000; // pixels; of a longer view only what is in the window is taken
const SKIPPED = ".controls, .unseen, select, input, details, [hidden], .onward, .options"; // what is worked with, not looked at

/**
 * @param {HTMLElement} root @param {Palette} palette @param {string} title
 * @returns {Figure}
 */
export function snapshot(root, palette, title) {
  const whole = root.getBoundingClientRect();
  const top = whole.height > TALL ? Math.max(whole.top, 0) : whole.top;
  const bottom = whole.height > TALL ? Math.min(whole.bottom, innerHeight) : whole.bottom;
  const clip = { left: whole.left, top, right: whole.right, bottom };
  const taken = new Taker(new Figure(whole.width + 2 * MARGIN, bottom - top + 2 * MARGIN, palette, title), MARGIN - whole.left, MARGIN - top);
  taken.element(root, clip);
  taken.trim();
  return taken.figure;
}

/** @param {Box} box @param {Box} clip whether the middle of a box is inside */
const inside = (box, clip) => {
  const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
  return x >= clip.left - 1 && x <= clip.right + 1 && y >= clip.top - 1 && y <= clip.bottom + 1;
};

class Taker {
  /** @param {Figure} figure @param {number} dx @param {number} dy */
  constructor(figure, dx, dy) {
    this.figure = figure;
    this.dx = dx;
    this.dy = dy;
    this.lowest = 0;
    this.context = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  }

  /** @param {Element} element @param {Box} clip */
  element(element, clip) {
    if (element.matches(SKIPPED)) return;
    const style = getComputedStyle(element);
    if (style.display === "none" || style.visibility === "hidden") return;
    const box = element.getBoundingClientRect();
    if (style.display !== "contents" && style.display !== "inline" && (box.bottom < clip.top || box.top > clip.bottom)) return;
    if (element instanceof SVGElement) return this.vector(element, style, clip);
    this.ground(element, style, clip);
    if (element instanceof HTMLCanvasElement) {
      if (inside(box, clip) && element.width > 0) this.put(box, () => this.figure.image(box.left + this.dx, box.top + this.dy, box.width, box.height, element));
      return;
    }
    const clips = style.overflowX !== "visible" || style.overflowY !== "visible";
    const inner = clips ? { left: Math.max(clip.left, box.left), top: Math.max(clip.top, box.top), right: Math.min(clip.right, box.right), bottom: Math.min(clip.bottom, box.bottom) } : clip;
    for (const child of element.childNodes) {
      if (child instanceof Element) this.element(child, inner);
      else if (child.nodeType === Node.TEXT_NODE) this.words(/** @type {globalThis.Text} */ (child), style, inner);
    }
    this.note(/** @type {HTMLElement} */ (element), box, inner);
  }

  /** @param {Box} box @param {() => void} draw */
  put(box, draw) {
    this.lowest = Math.max(this.lowest, box.bottom + this.dy);
    draw();
  }

  /** The ground of an element, and the frame around one that is chosen. @param {Element} element @param {CSSStyleDeclaration} style @param {Box} clip */
  ground(element, style, clip) {
    const filled = !/^rgba\(.*, 0\)$|^transparent$/.test(style.backgroundColor);
    const edged = parseFloat(style.borderTopWidth) > 0 && parseFloat(style.borderLeftWidth) > 0 && style.borderTopStyle !== "none";
    const framed = element.matches('.word[aria-pressed="true"]');
    if (!filled && !edged && !framed) return;
    for (const box of element.getClientRects()) {
      if (!inside(box, clip) || !box.width) continue;
      const stroke = framed ? this.figure.palette.ink : edged ? style.borderTopColor : "";
      const radius = Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.height / 2);
      this.put(box, () => this.figure.rect(box.left + this.dx, box.top + this.dy, box.width, box.height, filled ? style.backgroundColor : "", { radius, stroke }));
    }
  }

  /** A text, a line at a time. @param {globalThis.Text} node @param {CSSStyleDeclaration} style @param {Box} clip */
  words(node, style, clip) {
    if (!node.data.trim()) return;
    const size = parseFloat(style.fontSize);
    this.context.font = `${style.fontWeight} ${size}px ${style.fontFamily}`;
    const { fontBoundingBoxAscent: ascent, fontBoundingBoxDescent: descent } = this.context.measureText("x");
    for (const { text, box } of linesOf(node)) {
      if (!text.trim() || !inside(box, clip)) continue;
      const baseline = box.bottom - (descent / (ascent + descent)) * (box.bottom - box.top);
      const more = { size, anchor: /** @type {"middle"} */ ("middle"), fill: style.color, family: style.fontFamily, weight: Number(style.fontWeight) || 400 };
      this.put(box, () => this.figure.text((box.left + box.right) / 2 + this.dx, baseline + this.dy, shownAs(text, style), more));
    }
  }

  /** The number under a word. @param {HTMLElement} element @param {Box} box @param {Box} clip */
  note(element, box, clip) {
    const note = element.dataset?.weight;
    if (!note || !inside(box, clip)) return;
    this.figure.text((box.left + box.right) / 2 + this.dx, box.bottom + 10 + this.dy, note, { size: 11.5, anchor: "middle", fill: this.figure.palette.soft });
    this.lowest = Math.max(this.lowest, box.bottom + 14 + this.dy);
  }

  /** Curves and words of a drawing. @param {SVGElement} element @param {CSSStyleDeclaration} style @param {Box} clip */
  vector(element, style, clip) {
    const box = element.getBoundingClientRect();
    if (element instanceof SVGSVGElement) {
      this.figure.within(clip.left + this.dx, clip.top + this.dy, clip.right - clip.left, clip.bottom - clip.top, () => this.drawing(element, box, clip));
      this.lowest = Math.max(this.lowest, Math.min(box.bottom, clip.bottom) + this.dy);
    } else if (element instanceof SVGTextElement) {
      const svg = /** @type {SVGSVGElement} */ (element.ownerSVGElement).getBoundingClientRect();
      const [x, y] = ["x", "y"].map((name) => Number(element.getAttribute(name)));
      const more = { size: parseFloat(style.fontSize), anchor: /** @type {"middle"} */ ("middle"), fill: style.fill, family: style.fontFamily, weight: Number(style.fontWeight) || 400 };
      this.figure.text(x + svg.left + this.dx, y + svg.top + this.dy, element.textContent ?? "", more);
    }
  }

  /** The curves and words of one drawing. @param {SVGSVGElement} svg @param {DOMRect} box @param {Box} clip */
  drawing(svg, box, clip) {
    for (const child of svg.children) {
      const own = getComputedStyle(child);
      if (child instanceof SVGPathElement) {
        const moved = shifted(child.getAttribute("d") ?? "", box.left + this.dx, box.top + this.dy);
        this.figure.path(moved, own.stroke, parseFloat(own.strokeWidth), { opacity: parseFloat(own.opacity) });
      } else if (child instanceof SVGTextElement) this.vector(child, own, clip);
    }
  }

  /** End the figure where what is in it ends. */
  trim() {
    if (this.lowest) this.figure.height = Math.min(this.figure.height, this.lowest + MARGIN);
  }
}

/** @param {string} text @param {CSSStyleDeclaration} style */
function shownAs(text, style) {
  const one = text.replace(/\s+/g, " ");
  return style.textTransform === "uppercase" ? one.toUpperCase() : one;
}

/**
 * The lines on which a text stands, each with its box.
 * @param {globalThis.Text} node @returns {{text: string, box: DOMRect}[]}
 */
function linesOf(node) {
  const range = document.createRange();
  range.selectNodeContents(node);
  const boxes = [...range.getClientRects()].filter((box) => box.width > 0);
  if (boxes.length <= 1) return boxes.map((box) => ({ text: node.data, box }));
  /** @type {{text: string, box: DOMRect}[]} */
  const lines = [];
  for (const { segment, index } of new Intl.Segmenter(undefined, { granularity: "word" }).segment(node.data)) {
    range.setStart(node, index);
    range.setEnd(node, index + segment.length);
    const box = range.getBoundingClientRect();
    const line = lines[lines.length - 1];
    if (line && Math.abs(line.box.bottom - box.bottom) < 2) {
      line.text += segment;
      const [left, right] = [Math.min(line.box.left, box.left), Math.max(line.box.right, box.right)];
      line.box = new DOMRect(left, line.box.top, right - left, line.box.height);
    } else if (box.width) lines.push({ text: segment, box });
  }
  return lines;
}

/**
 * A path of absolute moves and curves, moved.
 * @param {string} d @param {number} dx @param {number} dy @returns {string}
 */
export function shifted(d, dx, dy) {
  let across = true;
  return d.replace(/[A-Z]|-?\d+(?:\.\d+)?/g, (part) => {
    if (/[A-Z]/.test(part)) {
      across = true;
      return part;
    }
    const moved = Number(part) + (across ? dx : dy);
    across = !across;
    return moved.toFixed(1);
  });
}
