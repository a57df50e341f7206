// A source that needs no server: the weights of a run, read from the page they stand in. What a cell
// is, and what is left out of it, is as in clearhead/viewer/picture.py and sinks.py.

import { Refused } from "./source.js";

/** @typedef {import("./source.js").About} About */
/** @typedef {import("./source.js").Answer} Answer */
/** @typedef {import("./source.js").Axis} Axis */
/** @typedef {import("./source.js").Picture} Picture */
/** @typedef {import("./source.js").Unit} Unit */

/**
 * @typedef {object} PageData
 * @property {About} about
 * @property {number} decimals  weights are rounded to this many
 * @property {string} weights  base 85 of gzip of all low bytes, then all high bytes, of (L, H, T, S) and, if there, the rollout (T, T)
 * @property {number | null} rollout  what the rollout is counted in; null: it is not there
 * @property {Record<string, string>} measures  what each means
 * @property {(number | null)[][]} values  of each measure, (L H)
 * @property {{share: number, times: number, rows: number, rule: string}} sinks  what makes a column one
 */

/** A matrix in units: NaN is hidden; `which` names the strongest of several heads. @typedef {{rows: number, columns: number, values: Float32Array, which: Float32Array | null}} Matrix */

const HIDDEN = 65535; // no weight is this large
const MOST_CELLS = 1 << 20; // of a window
const KEPT_CELLS = 1 << 24;
const TILE = 256;
const NOTHING = { special: false, sinks: false, columns: [] };

/**
 * Which unit each token reads for and is read as, and how many tokens each has: as in units.py.
 * @param {Axis} axis @param {Unit} unit @param {boolean} reading
 * @returns {{count: number, label: Int32Array, sizes: Int32Array}}
 */
export function sideOf(axis, unit, reading) {
  const label = new Int32Array(axis.tokens.length).fill(-1);
  if (unit === "tokens") label.forEach((_, at) => (label[at] = at));
  else if (unit !== "words") axis[unit].forEach(([begin, end], at) => label.fill(at, begin, end));
  else if (reading) axis.words.forEach((word, at) => word[3].forEach((token) => (label[token] = at)));
  else axis.tokens.forEach((token, at) => (label[at] = token[4]));
  const sizes = new Int32Array(axis[unit].length);
  for (const at of label) if (at >= 0) sizes[at]++;
  return { count: axis[unit].length, label, sizes };
}

/** The picture in a question. @param {Partial<Picture> & Pick<Picture, "heads">} asked @returns {Picture} */
const pictureIn = ({ heads, join = "mean", unit = "tokens", leave = NOTHING }) => ({ heads, join, unit, leave });

// Five characters for four bytes, as Python's b85encode but for "<", which a page cannot hold: it is ".".
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;.=>?@^_`{|}~";

/** @param {string} text @returns {Uint8Array<ArrayBuffer>} */
export function bytesOf(text) {
  const digit = new Uint8Array(128);
  for (let at = 0; at < DIGITS.length; at++) digit[DIGITS.charCodeAt(at)] = at;
  const groups = Math.ceil(text.length / 5);
  const view = new DataView(new ArrayBuffer(4 * groups));
  for (let group = 0; group < groups; group++) {
    let value = 0;
    for (let at = 5 * group; at < 5 * group + 5; at++) value = value * 85 + (at < text.length ? digit[text.charCodeAt(at)] : 84);
    view.setUint32(4 * group, value);
  }
  return new Uint8Array(view.buffer, 0, Math.floor((4 * text.length) / 5));
}

/** @param {string} text @returns {Promise<Uint16Array>} */
async function unpacked(text) {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const count = bytes.length / 2;
  const out = new Uint16Array(count);
  for (let at = 0; at < count; at++) out[at] = bytes[at] | (bytes[count + at] << 8);
  return out;
}

/** @typedef {import("./source.js").Source} Source */

/** @implements {Source} */
export class Embedded {
  /** @param {PageData} data @param {Uint16Array} packed  weights in units of 10 ** -decimals, then the rollout */
  constructor(data, packed) {
    this.data = data;
    this.packed = packed;
    this.unit = 10 ** -data.decimals;
    const { about } = data;
    this.columns = about.columns ?? about.rows;
    this.T = about.rows.tokens.length;
    this.S = this.columns.tokens.length;
    this.H = about.heads.length;
    /** @type {Map<string, Matrix>} oldest use first */
    this.kept = new Map();
  }

  /** @param {PageData} data @returns {Promise<Embedded>} */
  static async open(data) {
    return new Embedded(data, await unpacked(data.weights));
  }

  async runs() {
    const { about } = this.data;
    return [{ id: "page", title: about.title, model: about.model, tokens: this.T }];
  }

  /** @returns {Promise<string>} */
  async read() {
    throw new Refused("This page holds one run and no model; clearhead view reads other texts.");
  }

  /**
   * @param {string} _run
   * @param {string} question
   * @param {any} args
   * @returns {Promise<Answer>}
   */
  async ask(_run, question, args) {
    /** @type {Record<string, (args: any) => Answer>} */
    const questions = {
      about: () => ({ json: this.data.about, arrays: [] }),
      tile: (tile) => this.tile(tile),
      row: (asked) => this.row(pictureIn(asked), asked.index),
      column: (asked) => this.column(pictureIn(asked), asked.index),
      window: (asked) => this.window(pictureIn(asked), asked.rows, asked.columns),
      removed: (asked) => ({ json: this.removed(pictureIn(asked)), arrays: [] }),
      heads: () => ({ json: { measures: this.data.measures }, arrays: this.data.values.map((values) => Float32Array.from(values, (value) => value ?? NaN)) }),
      across: (cell) => ({ json: {}, arrays: [this.across(cell)] }),
      rollout: (asked) => ({ json: {}, arrays: [this.rollout(asked)] }),
    };
    if (!Object.hasOwn(questions, question)) throw new Refused(`This page holds weights, not what ${question} would need.`);
    return questions[question](args);
  }

  /** Where a row of weights begins. @param {number} layer @param {number} head @param {number} token */
  at(layer, head, token) {
    return ((layer * this.H + head) * this.T + token) * this.S;
  }

  /** The tokens that stay in a picture; null: all. @param {Picture} picture @returns {Uint8Array | null} */
  keep({ leave, unit, heads }) {
    if (!leave.special && !leave.sinks && !leave.columns.length) return null;
    const gone = new Set(leave.columns);
    const { label } = sideOf(this.columns, unit, false);
    const out = Uint8Array.from(this.columns.tokens, (token, at) => Number(!(leave.special && token[5]) && !gone.has(label[at])));
    if (leave.sinks) for (const [token] of this.sinks(heads)) out[token] = 0;
    return out;
  }

  /** What a token's row loses when columns are left out. @param {number} start @param {Uint8Array | null} keep */
  lost(start, keep) {
    let lost = 0;
    if (keep) for (let key = 0; key < this.S; key++) if (!keep[key] && this.packed[start + key] !== HIDDEN) lost += this.packed[start + key];
    return Math.min(1, lost * this.unit);
  }

  /**
   * All cells of a picture.
   * @param {Picture} picture @returns {Matrix}
   */
  matrix(picture) {
    const key = JSON.stringify(picture);
    const known = this.kept.get(key);
    if (known) {
      this.kept.delete(key);
      this.kept.set(key, known);
      return known;
    }
    const [rows, columns] = [sideOf(this.data.about.rows, picture.unit, true), sideOf(this.columns, picture.unit, false)];
    const keep = this.keep(picture);
    const cells = rows.count * columns.count;
    const seen = new Uint8Array(cells);
    const total = new Float64Array(cells);
    const several = picture.join === "max" && picture.heads.length > 1;
    const which = several ? new Float32Array(cells) : null;
    const own = several ? new Float64Array(cells) : total;
    picture.heads.forEach(([layer, head], number) => {
      if (several) own.fill(0);
      this.add(own, seen, layer, head, rows, columns, keep);
      if (!which) return;
      own.forEach((weight, at) => {
        if (weight <= total[at]) return;
        total[at] = weight;
        which[at] = number;
      });
    });
    const parts = several ? 1 : picture.heads.length;
    const values = Float32Array.from(total, (weight, at) => (seen[at] ? weight / parts : NaN));
    const made = { rows: rows.count, columns: columns.count, values, which };
    this.kept.set(key, made);
    this.forget();
    return made;
  }

  /**
   * Add one head to the cells.
   * @param {Float64Array} out @param {Uint8Array} seen @param {number} layer @param {number} head
   * @param {ReturnType<typeof sideOf>} rows @param {ReturnType<typeof sideOf>} columns @param {Uint8Array | null} keep
   */
  add(out, seen, layer, head, rows, columns, keep) {
    for (let token = 0; token < this.T; token++) {
      const row = rows.label[token];
      if (row < 0) continue;
      const start = this.at(layer, head, token);
      const left = 1 - this.lost(start, keep);
      const times = left > 0 ? this.unit / left / rows.sizes[row] : 0;
      const base = row * columns.count;
      for (let key = 0; key < this.S; key++) {
        const weight = this.packed[start + key];
        const column = columns.label[key];
        if (weight === HIDDEN || column < 0 || (keep && !keep[key])) continue;
        out[base + column] += weight * times;
        seen[base + column] = 1;
      }
    }
  }

  /** Drop the matrices used longest ago. */
  forget() {
    let cells = 0;
    for (const { values } of this.kept.values()) cells += values.length;
    for (const [key, { values }] of this.kept) {
      if (cells <= KEPT_CELLS || this.kept.size === 1) return;
      this.kept.delete(key);
      cells -= values.length;
    }
  }

  /** @param {Picture} picture @param {number} index @returns {Answer} */
  row(picture, index) {
    const { columns, values, which } = this.matrix(picture);
    const cut = (/** @type {Float32Array} */ array) => array.slice(index * columns, (index + 1) * columns);
    const gone = this.gone(picture)[index];
    return { json: { removed: gone }, arrays: which ? [cut(values), cut(which)] : [cut(values)] };
  }

  /** @param {Picture} picture @param {number} index @returns {Answer} */
  column(picture, index) {
    const { rows, columns, values, which } = this.matrix(picture);
    const cut = (/** @type {Float32Array} */ array) => Float32Array.from({ length: rows }, (_, row) => array[row * columns + index]);
    return { json: {}, arrays: which ? [cut(values), cut(which)] : [cut(values)] };
  }

  /** @param {Picture} picture @param {[number, number]} rows @param {[number, number]} columns @returns {Answer} */
  window(picture, [a, b], [c, d]) {
    const whole = this.matrix(picture);
    if ((b - a) * (d - c) > MOST_CELLS) throw new Refused(`window: is ${(b - a) * (d - c)} cells, must be at most ${MOST_CELLS}`);
    const out = new Float32Array((b - a) * (d - c));
    for (let row = a; row < b; row++) out.set(whole.values.subarray(row * whole.columns + c, row * whole.columns + d), (row - a) * (d - c));
    return { json: {}, arrays: [out] };
  }

  /** @param {Picture & {pool: "mean" | "max", level: number, row: number, column: number}} tile @returns {Answer} */
  tile(tile) {
    const { pool, level, row, column } = tile;
    const whole = this.matrix(pictureIn(tile));
    const size = 2 ** level;
    const [top, left] = [row * TILE * size, column * TILE * size];
    const rows = Math.min(TILE, Math.ceil((whole.rows - top) / size));
    const columns = Math.min(TILE, Math.ceil((whole.columns - left) / size));
    const values = new Float32Array(rows * columns);
    let most = -1;
    for (let at = 0; at < values.length; at++) {
      const [r, c] = [top + Math.floor(at / columns) * size, left + (at % columns) * size];
      values[at] = pooled(whole, [r, Math.min(r + size, whole.rows), c, Math.min(c + size, whole.columns)], pool);
      if (values[at] > most) most = values[at];
    }
    return { json: { rows, columns, done: true, pending: [], top: most < 0 ? null : most }, arrays: [values] };
  }

  /** The mass that each row lost, the mean over its tokens and the heads. @param {Picture} picture @returns {Float64Array} */
  gone(picture) {
    const rows = sideOf(this.data.about.rows, picture.unit, true);
    const out = new Float64Array(rows.count);
    const keep = this.keep(picture);
    if (!keep) return out;
    rows.label.forEach((row, token) => {
      if (row < 0) return;
      for (const [layer, head] of picture.heads) out[row] += this.lost(this.at(layer, head, token), keep) / (rows.sizes[row] * picture.heads.length);
    });
    return out;
  }

  /** @param {Picture} picture */
  removed(picture) {
    const gone = this.gone(picture);
    const keep = this.keep(picture);
    const { label, count } = sideOf(this.columns, picture.unit, false);
    const whole = new Set(Array.from({ length: count }, (_, at) => at));
    label.forEach((column, key) => (!keep || keep[key]) && whole.delete(column));
    const most = gone.reduce((best, part) => Math.max(best, part), 0);
    return {
      mean: gone.length ? gone.reduce((sum, part) => sum + part, 0) / gone.length : 0,
      most,
      row_of_most: gone.length ? gone.indexOf(most) : null,
      columns: [...whole],
      sinks: this.sinks(picture.heads),
      rule: this.data.sinks.rule,
      rows_asked: this.T,
    };
  }

  /**
   * The tokens that many rows give much of their mass, and the share of each, strongest first.
   * @param {[number, number][]} heads @returns {[number, number][]}
   */
  sinks(heads) {
    const [received, seen, even] = [0, 1, 2].map(() => new Float64Array(this.S));
    for (let token = 0; token < this.T; token++) {
      const visible = new Uint8Array(this.S);
      for (const [layer, head] of heads) {
        const start = this.at(layer, head, token);
        for (let key = 0; key < this.S; key++) {
          if (this.packed[start + key] === HIDDEN) continue;
          visible[key] = 1;
          received[key] += (this.packed[start + key] * this.unit) / heads.length;
        }
      }
      const keys = visible.reduce((sum, one) => sum + one, 0);
      visible.forEach((one, key) => {
        seen[key] += one;
        even[key] += one / Math.max(keys, 1);
      });
    }
    const { share, times, rows } = this.data.sinks;
    /** @type {[number, number][]} */
    const found = [];
    received.forEach((mass, key) => {
      const part = mass / Math.max(seen[key], 1);
      const enough = seen[key] >= Math.min(rows, this.T / 2);
      if (enough && part >= share && part >= (times * even[key]) / Math.max(seen[key], 1)) found.push([key, part]);
    });
    return found.sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  }

  /** One cell in every head. @param {{unit: Unit, row: number, column: number, leave?: import("./source.js").Leave}} cell @returns {Float32Array} */
  across({ unit, row, column, leave = NOTHING }) {
    const layers = this.data.about.layers.length;
    return Float32Array.from({ length: layers * this.H }, (_, at) => {
      /** @type {[number, number]} */
      const head = [Math.floor(at / this.H), at % this.H];
      const { columns, values } = this.matrix({ heads: [head], join: "mean", unit, leave });
      return values[row * columns + column];
    });
  }

  /** @param {{index: number, unit: Unit, direction: "to" | "from"}} asked @returns {Float32Array} */
  rollout({ index, unit, direction }) {
    if (this.data.rollout === null) throw new Refused("This page has no rollout: it holds no self-attention of layers in a row.");
    const start = this.packed.length - this.T * this.T;
    const [rows, columns] = [sideOf(this.data.about.rows, unit, true), sideOf(this.columns, unit, false)];
    const out = new Float32Array(direction === "to" ? columns.count : rows.count);
    for (let token = 0; token < this.T; token++) {
      for (let key = 0; key < this.T; key++) {
        const [row, column] = [rows.label[token], columns.label[key]];
        if (row < 0 || column < 0 || (direction === "to" ? row : column) !== index) continue;
        out[direction === "to" ? column : row] += (this.packed[start + token * this.T + key] * this.data.rollout) / rows.sizes[row];
      }
    }
    return out;
  }
}

/**
 * The mean or the largest of the cells that are not hidden; NaN where all are.
 * @param {Matrix} whole @param {[number, number, number, number]} bounds @param {"mean" | "max"} pool
 */
function pooled({ values, columns }, [a, b, c, d], pool) {
  let count = 0;
  let sum = 0;
  let most = 0;
  for (let row = a; row < b; row++) {
    for (let column = c; column < d; column++) {
      const value = values[row * columns + column];
      if (Number.isNaN(value)) continue;
      count++;
      sum += value;
      if (value > most) most = value;
    }
  }
  if (!count) return NaN;
  return pool === "mean" ? sum / count : most;
}
