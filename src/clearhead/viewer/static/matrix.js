// One head, cell by cell: rows read columns.

import { colour, ink } from "./colour.js";
import { picture } from "./heads.js";

const NAME = 11; // pixels that a name needs of its axis
const NUMBERED = 34; // pixels a cell needs to hold its number
const NAMES_AT_MOST = 600; // on an axis that has names at all
const TILT = Math.PI / 4;

export class MatrixView {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {HTMLElement} readout
   * @param {(weight: number) => string} shown
   */
  constructor(canvas, readout, shown) {
    this.canvas = canvas;
    this.readout = readout;
    this.shown = shown;
    /** @type {{map: Float32Array, size: number, kept: number[], names: string[], share: (w: number) => number} | null} */
    this.data = null;
    /** @type {[number, number] | null} */
    this.cell = null;
    this.image = document.createElement("canvas");
    this.side = 0;
    this.left = 0;
    this.top = 0;
    canvas.addEventListener("pointermove", (event) => this.point(this.under(event)));
    canvas.addEventListener("pointerdown", (event) => this.point(this.under(event)));
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      if (!step || !this.data) return;
      const last = this.data.kept.length - 1;
      const [row, column] = this.cell ?? [0, -step[1]];
      this.point([Math.max(0, Math.min(last, row + step[0])), Math.max(0, Math.min(last, column + step[1]))]);
      event.preventDefault();
    });
    new ResizeObserver(() => this.draw()).observe(/** @type {HTMLElement} */ (canvas.parentElement));
  }

  /**
   * @param {Float32Array} map  row by row
   * @param {number} size  its rows and columns
   * @param {number[]} kept  those to show
   * @param {string[]} names  of all rows
   * @param {(weight: number) => number} share
   * @param {string} label  what the picture is, in words
   */
  update(map, size, kept, names, share, label) {
    this.data = { map, size, kept, names, share };
    this.canvas.setAttribute("aria-label", `${label}. Arrow keys go from cell to cell.`);
    this.point(null);
  }

  /** @param {PointerEvent} event @returns {[number, number] | null} */
  under(event) {
    const count = this.data?.kept.length ?? 0;
    const row = Math.floor((event.offsetY - this.top) / this.side);
    const column = Math.floor((event.offsetX - this.left) / this.side);
    return row >= 0 && row < count && column >= 0 && column < count ? [row, column] : null;
  }

  /** @param {[number, number] | null} cell */
  point(cell) {
    this.cell = cell;
    this.draw();
    if (!this.data) return;
    if (!cell) {
      this.readout.textContent = "Rows read columns. Point at a cell for its weight.";
      return;
    }
    const { map, size, kept, names } = this.data;
    const [from, to] = cell.map((at) => kept[at]);
    const row = kept.map((at) => map[from * size + at]);
    const weight = map[from * size + to];
    const place = 1 + row.filter((other) => other > weight).length;
    const strong = document.createElement("strong");
    strong.textContent = this.shown(weight);
    this.readout.replaceChildren(isolated(names[from]), " reads ", isolated(names[to]), " ", strong, `, number ${place} of ${kept.length} in its row`);
  }

  draw() {
    if (!this.data) return;
    const { map, size, kept, names, share } = this.data;
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    const style = getComputedStyle(this.canvas);
    const room = Math.min(/** @type {HTMLElement} */ (this.canvas.parentElement).clientWidth, 860);
    const font = (/** @type {number} */ px) => `${px}px ${style.fontFamily}`;
    context.font = font(13);
    const widest = Math.min(Math.max(...kept.map((at) => context.measureText(names[at]).width)), room * 0.22, 150);
    const named = kept.length <= NAMES_AT_MOST;
    const gutter = named ? Math.ceil(widest) + 10 : 2;
    let side = Math.min((room - gutter * 1.6) / kept.length, 46);
    if (side > 9) side = Math.floor(side);
    this.side = side;
    this.left = gutter;
    this.top = named ? Math.ceil(gutter * (side > 20 ? 0.75 : 1)) + 6 : 2;
    const width = this.left + side * kept.length + (named ? gutter * 0.6 : 2);
    const height = this.top + side * kept.length + 2;
    const dots = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * dots);
    this.canvas.height = Math.round(height * dots);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    context.scale(dots, dots);
    context.imageSmoothingEnabled = side < 1;
    picture(this.image, map, size, kept, share, kept.length);
    context.drawImage(this.image, this.left, this.top, side * kept.length, side * kept.length);
    if (named) this.names(context, style, font(Math.max(11, Math.min(13, side))), widest);
    if (side >= NUMBERED) this.numbers(context, font(11));
    if (this.cell) {
      const [row, column] = this.cell;
      context.strokeStyle = style.color;
      context.globalAlpha = 0.35;
      context.strokeRect(this.left, this.top + row * side, side * kept.length, side);
      context.strokeRect(this.left + column * side, this.top, side, side * kept.length);
      context.globalAlpha = 1;
      context.lineWidth = 2;
      context.strokeRect(this.left + column * side, this.top + row * side, side, side);
    }
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {CSSStyleDeclaration} style
   * @param {string} font
   * @param {number} widest
   */
  names(context, style, font, widest) {
    const { kept, names } = /** @type {NonNullable<typeof this.data>} */ (this.data);
    context.font = font;
    context.fillStyle = style.color;
    context.textBaseline = "middle";
    const every = Math.ceil(NAME / this.side);
    kept.forEach((at, place) => {
      const [rowHere, columnHere] = (this.cell ?? [-1, -1]).map((chosen) => chosen === place);
      const middle = (place + 0.5) * this.side;
      const name = () => shortened(context, names[at], widest);
      if (rowHere || place % every === 0) {
        context.globalAlpha = !this.cell || rowHere ? 1 : 0.3;
        context.textAlign = "right";
        context.fillText(name(), this.left - 7, this.top + middle);
      }
      if (columnHere || place % every === 0) {
        context.globalAlpha = !this.cell || columnHere ? 1 : 0.3;
        context.save();
        context.translate(this.left + middle, this.top - 6);
        context.rotate(this.side > 20 ? -TILT : -Math.PI / 2);
        context.textAlign = "left";
        context.fillText(name(), 0, 0);
        context.restore();
      }
    });
    context.globalAlpha = 1;
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {string} font
   */
  numbers(context, font) {
    const { map, size, kept, share } = /** @type {NonNullable<typeof this.data>} */ (this.data);
    context.font = font;
    context.textAlign = "center";
    context.textBaseline = "middle";
    kept.forEach((from, row) =>
      kept.forEach((to, column) => {
        const weight = map[from * size + to];
        if (weight < 0.005) return;
        context.fillStyle = ink(colour(share(weight)));
        const text = weight.toFixed(2).replace(/^0/, "");
        context.fillText(text, this.left + (column + 0.5) * this.side, this.top + (row + 0.5) * this.side + 0.5);
      }),
    );
  }
}

/** A name kept apart from the direction of the sentence around it. @param {string} text */
export function isolated(text) {
  const element = document.createElement("bdi");
  element.textContent = text;
  return element;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} width
 */
function shortened(context, text, width) {
  const whole = [...new Intl.Segmenter().segment(text)].map((part) => part.segment);
  let count = whole.length;
  while (count > 1 && context.measureText(whole.slice(0, count).join("") + (count < whole.length ? "…" : "")).width > width) count--;
  return whole.slice(0, count).join("") + (count < whole.length ? "…" : "");
}
