// The cells of a map as pictures: which tiles stand where, in which colours.

import { make } from "./dom.js";
import { Tiles, lastLevel, levelFor, spotsIn, SIDE } from "./tiles.js";
import { Scale, leastAbove0, lookup, paint } from "./tint.js";

/** @typedef {import("./tiles.js").Tile & {low: number, hidden: boolean, drawn?: {canvas: HTMLCanvasElement, scale: string}}} Sheet */
/** @typedef {import("./tiles.js").Spot} Spot */
/** @typedef {import("./draw.js").Piece} Piece */
/** @typedef {import("./pens.js").Box} Box */

const MOST_TILES = 160; // 80 MB of values and pixels
const PATIENCE = 400; // ms that the picture before may stand for a new one
const PACE = 50; // ms between two changes of what is wanted, while things move

export class Layers {
  /**
   * @param {import("./app.js").App} app
   * @param {() => void} changed
   */
  constructor(app, changed) {
    this.app = app;
    this.changed = changed;
    this.key = "";
    this.level = 0;
    this.last = 0;
    /** @type {Tiles | null} */
    this.tiles = null;
    /** @type {import("./camera.js").Camera | null} */
    this.camera = null;
    /** @type {Spot[]} */
    this.wanted = [];
    this.lastWant = -Infinity;
    this.since = -Infinity;
    /** @type {{name: string, colours: Uint32Array}} */
    this.table = { name: "", colours: new Uint32Array(0) };
    this.scale = new Scale("linear", 1, 0);
    /** @type {{of: Sheet, name: string, canvas: HTMLCanvasElement} | null} */
    this.small = null;
  }

  /**
   * @param {string} run
   * @param {import("./source.js").Picture} picture
   * @param {"mean" | "max"} pool
   * @param {import("./camera.js").Camera} camera
   */
  use(run, picture, pool, camera) {
    this.camera = camera;
    const key = JSON.stringify([run, picture, pool]);
    if (key === this.key) return;
    this.key = key;
    this.tiles?.close();
    this.last = lastLevel(camera.rows, camera.columns);
    /** @param {Spot} spot @param {AbortSignal} signal */
    const fetch = async (spot, signal) => {
      const { json, arrays } = await this.app.source.ask(run, "tile", { ...picture, pool, ...spot }, signal);
      const [values] = arrays;
      const { rows, columns, top, done } = json;
      return { values, rows, columns, top, done, low: leastAbove0(values), hidden: values.some(Number.isNaN) };
    };
    const failed = (/** @type {unknown} */ error) => this.app.say(error, () => (this.tiles?.resume(), this.changed()));
    this.tiles = new Tiles(fetch, { most: MOST_TILES, changed: this.changed, failed });
    this.wanted = [];
    this.lastWant = -Infinity;
    this.since = performance.now();
  }

  /** Whether anything of this picture has come, or it takes so long that it is better to show that. */
  get ready() {
    return (this.tiles?.kept.size ?? 0) > 0 || performance.now() - this.since > PATIENCE;
  }

  /** Nothing is wanted for now. */
  rest() {
    clearTimeout(this.later);
    this.tiles?.want([]);
    this.lastWant = -Infinity;
  }

  /** Find the level anew. */
  look() {
    if (this.camera) this.level = levelFor(this.camera.zoom, this.last);
  }

  /** @param {Spot} spot @returns {Sheet | undefined} */
  get(spot) {
    return /** @type {Sheet | undefined} */ (this.tiles?.get(spot));
  }

  /** The value of the cell that covers a unit, at the level that is seen, if it is here. @param {number} row @param {number} column */
  value(row, column) {
    const { level } = this;
    const [r, c] = [row >> level, column >> level];
    const tile = this.get({ level, row: r >> 8, column: c >> 8 });
    return tile?.values[(r % SIDE) * tile.columns + (c % SIDE)];
  }

  /**
   * The pieces that make up the plot, and the scale of their colours.
   * @param {import("./tint.js").ScaleKind} kind
   * @param {import("./colour.js").Palette} palette
   * @param {[number, number]} focus  what is looked at: its tiles are asked for first
   * @param {number} dots  of the screen, to a pixel
   * @param {Box} plot
   */
  pieces(kind, palette, focus, dots, plot) {
    const camera = /** @type {import("./camera.js").Camera} */ (this.camera);
    this.look();
    const spots = spotsIn(this.level, camera.bounds, focus);
    this.want(spots, focus);
    const own = spots.map((spot) => this.get(spot)).filter((tile) => tile !== undefined);
    const whole = this.get({ level: this.last, row: 0, column: 0 });
    const counted = own.length ? own : whole ? [whole] : [];
    this.scale = new Scale(kind, Math.max(0, ...counted.map((tile) => tile.top)), Math.min(Infinity, ...counted.map((tile) => tile.low)));
    const name = `${this.scale.name} ${palette.dark}`;
    if (name !== this.table.name) this.table = { name, colours: lookup(this.scale, palette.ramp) };
    const edge = edges(camera, dots, plot);
    const part = parts(camera);
    /** @type {Piece[]} */
    const pieces = [];
    let hidden = false;
    for (const spot of spots) {
      const found = this.standing(spot);
      for (const { tile, at, of } of found) {
        hidden ||= tile?.hidden ?? false;
        pieces.push({ image: tile ? this.picture(tile) : null, from: part(at, of), to: edge(at) });
      }
    }
    return { pieces, hidden, scale: this.scale };
  }

  /**
   * What stands at a spot: its tile; or a coarser one, and on it the finer ones that are here.
   * @param {Spot} spot
   * @returns {{tile: Sheet | null, at: Spot, of: Spot}[]}
   */
  standing(spot) {
    const own = this.get(spot);
    if (own) return [{ tile: own, at: spot, of: spot }];
    const above = this.tiles?.above(spot, this.last) ?? null;
    /** @type {{tile: Sheet | null, at: Spot, of: Spot}[]} */
    const standing = [{ tile: /** @type {Sheet | null} */ (above?.tile ?? null), at: spot, of: above?.spot ?? spot }];
    if (!spot.level) return standing;
    for (const [down, right] of [[0, 0], [0, 1], [1, 0], [1, 1]]) {
      const at = { level: spot.level - 1, row: spot.row * 2 + down, column: spot.column * 2 + right };
      const tile = this.get(at);
      if (tile) standing.push({ tile, at, of: at });
    }
    return standing;
  }

  /**
   * Say what is wanted, not more often than things can change: the coarsest first, then what is seen,
   * then what lies around it.
   * @param {Spot[]} spots
   * @param {[number, number]} focus
   */
  want(spots, focus) {
    const { tiles, camera } = this;
    if (!tiles || !camera) return;
    const wait = this.lastWant + PACE - performance.now();
    clearTimeout(this.later);
    if (wait > 0) {
      this.later = setTimeout(this.changed, wait);
      return;
    }
    const [a, b, c, d] = camera.bounds;
    const around = 0.35 * SIDE * 2 ** this.level;
    const wider = spotsIn(this.level, [Math.max(0, a - around), Math.min(camera.rows, b + around), Math.max(0, c - around), Math.min(camera.columns, d + around)], focus);
    const seen = new Set(spots.map((spot) => `${spot.row} ${spot.column}`));
    const next = [{ level: this.last, row: 0, column: 0 }, ...spots, ...wider.filter((spot) => !seen.has(`${spot.row} ${spot.column}`))];
    if (same(next, this.wanted)) return;
    this.wanted = next;
    this.lastWant = performance.now();
    tiles.want(next);
  }

  /** The tile in the colours of now. @param {Sheet} tile */
  picture(tile) {
    if (tile.drawn?.scale === this.table.name) return tile.drawn.canvas;
    const canvas = tile.drawn?.canvas ?? make("canvas", "", { width: tile.columns, height: tile.rows });
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const image = new ImageData(tile.columns, tile.rows);
    paint(tile.values, this.table.colours, new Uint32Array(image.data.buffer));
    context.putImageData(image, 0, 0);
    tile.drawn = { canvas, scale: this.table.name };
    return canvas;
  }

  /** The whole in its own colours, for the minimap. @param {import("./colour.js").Palette} palette */
  overview(palette) {
    const tile = this.get({ level: this.last, row: 0, column: 0 });
    if (!tile) return null;
    const name = `${palette.dark}`;
    if (this.small?.of === tile && this.small.name === name) return this.small.canvas;
    const canvas = make("canvas", "", { width: tile.columns, height: tile.rows });
    const image = new ImageData(tile.columns, tile.rows);
    paint(tile.values, lookup(new Scale("root", tile.top, 0), palette.ramp), new Uint32Array(image.data.buffer));
    /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")).putImageData(image, 0, 0);
    this.small = { of: tile, name, canvas };
    return canvas;
  }
}

/** @param {Spot[]} one @param {Spot[]} other */
const same = (one, other) =>
  one.length === other.length && one.every((spot, at) => spot.level === other[at].level && spot.row === other[at].row && spot.column === other[at].column);

/**
 * Which part of a tile, in its cells, covers a spot; the last cell of a side may cover less than the others.
 * @param {import("./camera.js").Camera} camera
 * @returns {(at: Spot, of: Spot) => Box}
 */
function parts({ rows, columns }) {
  return (at, of) => {
    const [span, cell] = [SIDE * 2 ** at.level, 2 ** of.level];
    const long = (/** @type {number} */ from, /** @type {number} */ all) => Math.min(span, all - from * span) / cell;
    const [x, y] = [(at.column * span) / cell - of.column * SIDE, (at.row * span) / cell - of.row * SIDE];
    return [x, y, long(at.column, columns), long(at.row, rows)];
  };
}

/**
 * Where a tile stands in the plot, its edges on the screen's dots so that neighbours meet without a seam.
 * @param {import("./camera.js").Camera} camera
 * @param {number} dots
 * @param {Box} plot
 * @returns {(spot: Spot) => Box}
 */
function edges({ left, top, zoom, rows, columns }, dots, plot) {
  const snap = (/** @type {number} */ at, /** @type {number} */ from) => Math.round((from + at) * dots) / dots - from;
  return ({ level, row, column }) => {
    const span = SIDE * 2 ** level;
    const [x, y] = [snap(left + column * span * zoom, plot[0]), snap(top + row * span * zoom, plot[1])];
    const right = snap(left + Math.min(columns, (column + 1) * span) * zoom, plot[0]);
    const bottom = snap(top + Math.min(rows, (row + 1) * span) * zoom, plot[1]);
    return [x, y, Math.max(1 / dots, right - x), Math.max(1 / dots, bottom - y)];
  };
}
