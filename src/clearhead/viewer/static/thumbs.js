// Small pictures of heads: asked of the source a few at a time, nearest to the window first.

import { channels } from "./colour.js";
import { Scale, leastAbove0 } from "./tint.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./state.js").Head} Head */
/** @typedef {import("./state.js").State} State */

/** @typedef {{rows: number, columns: number, values: Float32Array, top: number, done: boolean}} Tile */

const SIDE = 64; // cells of a small picture at most
const AT_ONCE = 4;
const AGAIN = 250; // ms until a picture that is not done is asked for again

/**
 * How far out a map of this size is seen in a small picture: a cell is 2 ** level units a side.
 * @param {number} rows @param {number} columns @param {number} [side]
 */
export function levelFor(rows, columns, side = SIDE) {
  return Math.max(0, Math.ceil(Math.log2(Math.max(rows, columns, 1) / side)));
}

/**
 * Paint a tile, one pixel a cell; what the mask hides in the ground of the hatch.
 * @param {HTMLCanvasElement} canvas @param {Tile} tile
 * @param {(value: number) => number[]} colour @param {number[]} hidden
 */
export function paintTile(canvas, tile, colour, hidden) {
  canvas.width = Math.max(1, tile.columns);
  canvas.height = Math.max(1, tile.rows);
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(canvas.width, canvas.height);
  tile.values.forEach((value, at) => {
    const [red, green, blue] = Number.isNaN(value) ? hidden : colour(value);
    image.data.set([red, green, blue, 255], 4 * at);
  });
  context.putImageData(image, 0, 0);
}

export class Thumbs {
  /** @param {App} app @param {(scale: Scale) => void} scaled  called when the common end of the scale has moved */
  constructor(app, scaled) {
    this.app = app;
    this.scaled = scaled;
    /** @type {Map<HTMLCanvasElement, {head: Head, tile: Tile | null}>} */
    this.pictures = new Map();
    /** @type {HTMLCanvasElement[]} */
    this.waiting = [];
    this.busy = 0;
    this.top = 0;
    this.least = Infinity;
    this.hidden = false;
    this.asking = new AbortController();
    this.near = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting) this.want(/** @type {HTMLCanvasElement} */ (target));
      }
    }, { rootMargin: "200px" });
  }

  /**
   * Begin anew with these pictures.
   * @param {Map<HTMLCanvasElement, Head>} pictures @param {State} state
   * @param {{level: number}} how
   */
  show(pictures, state, { level }) {
    this.stop();
    this.asking = new AbortController();
    this.state = state;
    this.level = level;
    this.top = 0;
    this.least = Infinity;
    this.hidden = false;
    this.pictures = new Map([...pictures].map(([canvas, head]) => [canvas, { head, tile: null }]));
    for (const canvas of pictures.keys()) this.near.observe(canvas);
  }

  /** @param {HTMLCanvasElement} canvas */
  want(canvas) {
    const picture = this.pictures.get(canvas);
    if (!picture || picture.tile || this.waiting.includes(canvas)) return;
    this.waiting.push(canvas);
    void this.work();
  }

  async work() {
    const { signal } = this.asking;
    while (this.busy < AT_ONCE && this.waiting.length && !signal.aborted) {
      const canvas = /** @type {HTMLCanvasElement} */ (this.waiting.shift());
      this.busy++;
      this.ask(canvas, signal)
        .catch((error) => this.app.say(error))
        .finally(() => {
          if (this.asking.signal !== signal) return;
          this.busy--;
          void this.work();
        });
    }
  }

  /** @param {HTMLCanvasElement} canvas @param {AbortSignal} signal */
  async ask(canvas, signal) {
    const picture = this.pictures.get(canvas);
    const state = this.state;
    if (!picture || !state) return;
    const { unit, leave, pool } = state;
    const question = { heads: [picture.head], join: "mean", unit, leave, pool, level: this.level, row: 0, column: 0 };
    const { json, arrays } = await this.app.source.ask(state.run, "tile", question, signal);
    if (signal.aborted) return;
    picture.tile = { rows: json.rows, columns: json.columns, values: arrays[0], top: json.top ?? 0, done: json.done };
    canvas.dataset.drawn = json.done ? "yes" : "partly";
    const grown = json.top > this.top;
    if (grown) this.top = json.top;
    this.least = Math.min(this.least, leastAbove0(arrays[0]));
    this.hidden ||= json.done && arrays[0].some(Number.isNaN); // before, a gap may be still to come
    this.paint(grown || state.scale === "log" ? null : canvas);
    if (!json.done) {
      setTimeout(() => {
        if (signal.aborted) return;
        picture.tile = null;
        this.want(canvas);
      }, AGAIN);
    }
  }

  /** @param {HTMLCanvasElement | null} [only]  null: all, since the scale or the colours changed */
  paint(only = null) {
    const { palette, state } = this.app;
    const [hidden, paper] = [palette.hidden[0], palette.paper].map(channels);
    const scale = new Scale(state.scale, this.top, this.least);
    const colour = (/** @type {number} */ value) => palette.at(scale.share(value));
    for (const canvas of only ? [only] : this.pictures.keys()) {
      const tile = this.pictures.get(canvas)?.tile;
      if (tile) paintTile(canvas, tile, colour, tile.done ? hidden : paper);
    }
    if (!only) this.scaled(scale);
  }

  stop() {
    this.asking.abort();
    this.near.disconnect();
    this.waiting = [];
    this.busy = 0;
  }
}
