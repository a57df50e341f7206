// The squares that a map is drawn from: asked for nearest first, kept within a bound, dropped when not wanted.

import { isCancelled } from "./source.js";

export const SIDE = 256; // cells of a tile, each way

const AT_ONCE = 4; // questions under way; a browser sends six at a time, and two are for what the pointer asks
const REST = 30; // ms until an unfinished tile is asked for again: each time a source does a part of it

/**
 * A place in the pyramid: a cell of level L covers 2^L x 2^L units.
 * @typedef {{level: number, row: number, column: number}} Spot
 *
 * @typedef {object} Tile
 * @property {Float32Array} values  row by row; NaN is hidden by the mask
 * @property {number} rows
 * @property {number} columns
 * @property {number} top  the largest value
 * @property {boolean} done  false: parts are still to come
 * @property {any} [drawn]  what a picture keeps with it
 */

/** @param {Spot} spot */
const keyOf = ({ level, row, column }) => `${level}/${row}/${column}`;

/** The coarsest level worth having: where all of it is one tile. @param {number} rows @param {number} columns */
export const lastLevel = (rows, columns) => Math.max(0, Math.ceil(Math.log2(Math.max(rows, columns, 1) / SIDE)));

/**
 * The level at which a cell is at least a pixel, so that none is skipped when drawn without smoothing.
 * @param {number} zoom  pixels of a unit
 * @param {number} last
 */
export const levelFor = (zoom, last) => Math.max(0, Math.min(last, Math.ceil(-Math.log2(zoom) - 1e-9)));

/**
 * The tiles of a level that touch rows [a, b) and columns [c, d), nearest to (row, column) first.
 * @param {number} level
 * @param {[number, number, number, number]} bounds
 * @param {[number, number]} focus
 * @returns {Spot[]}
 */
export function spotsIn(level, [a, b, c, d], [row, column]) {
  const span = SIDE * 2 ** level;
  const spots = [];
  for (let r = Math.floor(a / span); r * span < b; r++) {
    for (let k = Math.floor(c / span); k * span < d; k++) spots.push({ level, row: r, column: k });
  }
  const away = (/** @type {Spot} */ spot) => ((spot.row + 0.5) * span - row) ** 2 + ((spot.column + 0.5) * span - column) ** 2;
  return spots.sort((one, other) => away(one) - away(other));
}

export class Tiles {
  /**
   * @param {(spot: Spot, signal: AbortSignal) => Promise<Tile>} fetch
   * @param {object} how
   * @param {number} how.most  tiles kept, besides those that are wanted
   * @param {() => void} how.changed  a tile has come
   * @param {(error: unknown) => void} how.failed  nothing more is asked until `resume`
   */
  constructor(fetch, { most, changed, failed }) {
    this.fetch = fetch;
    this.most = most;
    this.changed = changed;
    this.failed = failed;
    /** @type {Map<string, Tile>} oldest use first */
    this.kept = new Map();
    /** @type {Map<string, Spot>} in order of need */
    this.wanted = new Map();
    /** @type {Map<string, AbortController>} */
    this.asked = new Map();
    /** @type {Map<string, ReturnType<typeof setTimeout>>} unfinished, and not to be asked for just now */
    this.resting = new Map();
    this.stopped = false;
  }

  /** Say which tiles are wanted now, most needed first; others under way are called off. @param {Spot[]} spots */
  want(spots) {
    this.wanted = new Map(spots.map((spot) => [keyOf(spot), spot]));
    for (const [key, asked] of this.asked) {
      if (this.wanted.has(key)) continue;
      this.asked.delete(key);
      asked.abort();
    }
    for (const [key, timer] of this.resting) {
      if (this.wanted.has(key)) continue;
      clearTimeout(timer);
      this.resting.delete(key);
    }
    this.ask();
    this.forget();
  }

  /** A tile that has come. @param {Spot} spot @returns {Tile | undefined} */
  get(spot) {
    const key = keyOf(spot);
    const tile = this.kept.get(key);
    if (tile) {
      this.kept.delete(key);
      this.kept.set(key, tile);
    }
    return tile;
  }

  /**
   * What stands for a tile until it comes: the nearest coarser one that covers it.
   * @param {Spot} spot
   * @param {number} last  the coarsest level
   * @returns {{tile: Tile, spot: Spot} | null}
   */
  above({ level, row, column }, last) {
    for (let up = level + 1; up <= last; up++) {
      const spot = { level: up, row: row >> (up - level), column: column >> (up - level) };
      const tile = this.get(spot);
      if (tile) return { tile, spot };
    }
    return null;
  }

  /** What is wanted, not yet here, and not yet asked for. */
  get waiting() {
    return [...this.wanted.keys()].filter((key) => this.needs(key) && !this.asked.has(key)).length;
  }

  /** @param {string} key */
  needs(key) {
    return !this.resting.has(key) && !this.kept.get(key)?.done;
  }

  ask() {
    if (this.stopped) return;
    for (const [key, spot] of this.wanted) {
      if (this.asked.size >= AT_ONCE) return;
      if (!this.asked.has(key) && this.needs(key)) void this.one(key, spot);
    }
  }

  /**
   * @param {string} key
   * @param {Spot} spot
   */
  async one(key, spot) {
    const controller = new AbortController();
    this.asked.set(key, controller);
    try {
      const tile = await this.fetch(spot, controller.signal);
      if (controller.signal.aborted) return;
      this.kept.delete(key);
      this.kept.set(key, tile);
      if (!tile.done) this.rest(key);
      this.changed();
    } catch (error) {
      if (controller.signal.aborted || isCancelled(error)) return;
      this.stop(error);
    } finally {
      if (this.asked.get(key) === controller) this.asked.delete(key);
    }
    this.ask();
  }

  /** Ask again after a while. @param {string} key */
  rest(key) {
    const again = () => {
      this.resting.delete(key);
      this.ask();
    };
    this.resting.set(key, setTimeout(again, REST));
  }

  /** Drop what was used longest ago. What is wanted stays. */
  forget() {
    let over = this.kept.size - this.most;
    for (const key of this.kept.keys()) {
      if (over <= 0) return;
      if (this.wanted.has(key)) continue;
      this.kept.delete(key);
      over--;
    }
  }

  /** @param {unknown} error */
  stop(error) {
    const first = !this.stopped;
    this.stopped = true;
    for (const asked of this.asked.values()) asked.abort();
    this.asked.clear();
    if (first) this.failed(error);
  }

  resume() {
    this.stopped = false;
    this.ask();
  }

  /** Call everything off. */
  close() {
    this.want([]);
    this.stopped = true;
  }
}
