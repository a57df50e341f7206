// Which labels an axis has room for, and how much of a label fits.

const MARK_STEPS = [1, 2, 5];

/** A label at its place: `at` is the middle of the unit, in pixels. @typedef {{index: number, at: number}} Mark */

/**
 * The units whose labels fit along an axis: every one, if each has `room` pixels; else those at round
 * numbers, `apart` pixels or more from each other.
 * @param {number} first  the first unit seen
 * @param {number} end  one past the last
 * @param {number} zoom  pixels of a unit
 * @param {number} start  pixels from the window's edge to unit 0
 * @param {{room: number, apart: number}} sizes
 * @returns {{each: boolean, marks: Mark[]}}
 */
export function marksOn(first, end, zoom, start, { room, apart }) {
  const each = zoom >= room;
  const step = each ? 1 : roundStep(apart / zoom);
  const marks = [];
  for (let index = Math.ceil(first / step) * step; index < end; index += step) marks.push({ index, at: start + (index + 0.5) * zoom });
  return { each, marks };
}

/** The smallest of 1, 2, 5, 10, 20, ... that is no less. @param {number} least */
export function roundStep(least) {
  for (let power = 1; ; power *= 10) for (const step of MARK_STEPS) if (step * power >= least) return step * power;
}

const segmenter = new Intl.Segmenter();

/**
 * A text cut to a width, at the end of a character as readers count them, with … for what is missing.
 * @param {string} text
 * @param {number} width
 * @param {(text: string) => number} measure
 */
export function fitted(text, width, measure) {
  if (measure(text) <= width) return text;
  const parts = [...segmenter.segment(text.slice(0, 400))].map((part) => part.segment);
  let [fits, not] = [0, parts.length];
  while (not - fits > 1) {
    const middle = (fits + not) >> 1;
    if (measure(`${parts.slice(0, middle).join("")}…`) <= width) fits = middle;
    else not = middle;
  }
  return `${parts.slice(0, fits).join("").trimEnd()}…`;
}

/** Remembers the last `most` answers of a function of one text. @template T */
export class Remembered {
  /**
   * @param {(text: string) => T} find
   * @param {number} most
   */
  constructor(find, most) {
    this.find = find;
    this.most = most;
    /** @type {Map<string, T>} */
    this.known = new Map();
  }

  /** @param {string} text @returns {T} */
  get(text) {
    const known = this.known.get(text);
    if (known !== undefined) return known;
    if (this.known.size >= this.most) this.known.clear();
    const found = this.find(text);
    this.known.set(text, found);
    return found;
  }
}
