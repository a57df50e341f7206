// Weights to colours, fast: a float32 is looked up by its upper 16 bits, which hold its sign, its
// exponent and 7 bits of its fraction, less than the step between two of the 256 colours.

const DECADES = 6; // below the largest weight, that a logarithmic scale shows at most
const words = new Uint32Array(1);
const floats = new Float32Array(words.buffer);

/** @typedef {"linear" | "root" | "log"} ScaleKind */

/** From a weight to a share of the scale, 0 to 1. */
export class Scale {
  /**
   * @param {ScaleKind} kind
   * @param {number} top  the largest weight
   * @param {number} low  the smallest above 0: where a logarithmic scale begins, if not too far down
   */
  constructor(kind, top, low) {
    this.kind = kind;
    this.top = top > 0 ? top : 1;
    this.floor = kind === "log" ? Math.min(Math.max(low, this.top * 10 ** -DECADES), this.top / 10) : 0;
  }

  /** @param {number} weight */
  share(weight) {
    if (!(weight > this.floor)) return 0;
    if (weight >= this.top) return 1;
    if (this.kind === "linear") return weight / this.top;
    if (this.kind === "root") return Math.sqrt(weight / this.top);
    return Math.log(weight / this.floor) / Math.log(this.top / this.floor);
  }

  /** The weight at a share of the scale. @param {number} share */
  weight(share) {
    if (this.kind === "linear") return share * this.top;
    if (this.kind === "root") return share ** 2 * this.top;
    return this.floor * (this.top / this.floor) ** share;
  }

  /** Equal scales give equal texts. */
  get name() {
    return `${this.kind} ${this.top} ${this.floor}`;
  }
}

/**
 * The colour of every float32 by its upper half, as ImageData has it; NaN and what is below 0 is clear.
 * @param {Scale} scale
 * @param {number[][]} ramp  256 colours
 */
export function lookup(scale, ramp) {
  const colours = new Uint32Array(1 << 16);
  const bytes = new Uint8Array(colours.buffer);
  for (let upper = 0; upper <= 0x7f80; upper++) {
    words[0] = (upper << 16) | (upper ? 0x8000 : 0); // the middle of what this half stands for
    const [red, green, blue] = ramp[Math.round(255 * scale.share(upper === 0x7f80 ? Infinity : floats[0]))];
    bytes.set([red, green, blue, 255], upper * 4);
  }
  bytes.copyWithin(0x8000 * 4, 0, 4); // minus zero
  return colours;
}

/**
 * @param {Float32Array} values
 * @param {Uint32Array} colours  from `lookup`
 * @param {Uint32Array} out  pixels
 */
export function paint(values, colours, out) {
  const halves = new Uint16Array(values.buffer, values.byteOffset, values.length * 2);
  for (let at = 0; at < values.length; at++) out[at] = colours[halves[2 * at + 1]];
}

/** The smallest value above 0, or Infinity. @param {Float32Array} values */
export function leastAbove0(values) {
  let least = Infinity;
  for (const value of values) if (value > 0 && value < least) least = value;
  return least;
}

/** As few digits as give the float32 back: "0.7", "1.5e-7". @param {number} value */
export function digits(value) {
  if (!Number.isFinite(value)) return String(value);
  for (let count = 1; count < 9; count++) {
    const text = value.toPrecision(count);
    if (Math.fround(Number(text)) === Math.fround(value)) return plain(text);
  }
  return plain(value.toPrecision(9));
}

/** A number in a few digits, for a legend or a list. @param {number} value @param {number} [count] */
export const brief = (value, count = 3) => plain(value.toPrecision(count));

/** Without zeros that say nothing; with an exponent where there would be many. @param {string} text */
function plain(text) {
  const value = Number(text);
  if (value === 0) return "0";
  const [mantissa, exponent] = text.includes("e") || Math.abs(value) < 1e-4 ? toExponent(text) : [text, null];
  const trimmed = mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa;
  return exponent === null ? trimmed : `${trimmed}e${exponent}`;
}

/** @param {string} text @returns {[string, number]} */
function toExponent(text) {
  const significant = text.replace(/e.*/, "").replace(/[-.]/g, "").replace(/^0+/, "").length;
  const [mantissa, exponent] = Number(text).toExponential(Math.max(0, significant - 1)).split("e");
  return [mantissa, Number(exponent)];
}
