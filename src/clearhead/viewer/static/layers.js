// The cells of a map as pictures: which tiles stand where, in which colours.

import { within } from "./camera.js";
import { make } from "./dom.js";
import { Tiles, lastLevel, levelFor, spotsIn, SIDE } from "./tiles.js";
import { Scale, leastAbove0, lookup, paint } from "./tint.js";

/**
 * A tile with its smallest value above 0, whether the mask hides any of it, and in which of its cells
 * ([top, bottom) x [left, right)) nothing is known yet.
 * @typedef {import("./tiles.js").Tile & {low: number, hidden: boolean, pending: Area[], drawn?: {canvas: HTMLCanvasElement, scale: string}}} Sheet
 *
 * Rows [a, b) and columns [c, d), in units.
 * @typedef {[number, number, number, number]} Area
 */
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
   * @param {(error: unknown) => void} failed
   */
  constructor(app, changed, failed) {
    this.app = app;
    this.changed = changed;
    this.failed = failed;
    this.key = "";
    this.level = 0;
    this.last = 0;
    /** @type {Tiles | null} */
    this.tiles = null;
    /** @type {import("./camera.js").Camera | null} */
    this.camera = null;
    /** @type {Spot[]} */
    this.wanted = [];
    /** @type {[number, number]} what is looked at */
    this.focus = [0, 0];
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
      const near = this.focus;
      const { json, arrays } = await this.app.source.ask(run, "tile", { ...picture, pool, ...spot, near }, signal);
      const [values] = arrays;
      const { rows, columns, top, done, pending = [] } = json;
      return { values, rows, columns, top: top ?? 0, done, pending, low: leastAbove0(values), hidden: hides(values, columns, pending) };
    };
    this.tiles = new Tiles(fetch, { most: MOST_TILES, changed: this.changed, failed: this.failed });
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
    this.focus = [Math.round(within(focus[0], 0, camera.rows - 1)), Math.round(within(focus[1], 0, camera.columns - 1))];
    const spots = spotsIn(this.level, camera.bounds, focus);
    this.want(spots, focus);
    const own = spots.map((spot) => this.get(spot)).filter((tile) => tile !== undefined);
    const whole = this.get({ level: this.last, row: 0, column: 0 });
    const counted = own.length ? own : whole ? [whole] : [];
    this.scale = new Scale(kind, Math.max(0, ...counted.map((tile) => tile.top)), Math.min(Infinity, ...counted.map((tile) => tile.low)));
    const name = `${this.scale.name} ${palette.dark}`;
    if (name !== this.table.name) this.table = { name, colours: lookup(this.scale, palette.ramp) };
    const edge = edges(camera, dots, plot);
    /** @type {Piece[]} */
    const pieces = [];
    let hidden = false;
    for (const spot of spots) {
      for (const { tile, area, of } of this.standing(spot)) {
        hidden ||= tile?.hidden ?? false;
        pieces.push({ image: tile ? this.picture(tile) : null, from: part(area, of), to: edge(area) });
      }
    }
    return { pieces, hidden, scale: this.scale };
  }

  /**
   * What stands at a spot, from below: a coarser tile where its own has not come, on it the finer ones
   * that are here, and its own.
   * @param {Spot} spot
   * @returns {{tile: Sheet | null, area: Area, of: Spot}[]}
   */
  standing(spot) {
    const camera = /** @type {import("./camera.js").Camera} */ (this.camera);
    const [own, area] = [this.get(spot), areaOf(spot, camera)];
    if (own && !own.pending.length) return [{ tile: own, area, of: spot }];
    const cell = 2 ** spot.level;
    const open = own ? own.pending.map(([a, b, c, d]) => cut([area[0] + a * cell, area[0] + b * cell, area[2] + c * cell, area[2] + d * cell], area)) : [area];
    const above = this.tiles?.above(spot, this.last) ?? null;
    const tile = /** @type {Sheet | null} */ (above && !(/** @type {Sheet} */ (above.tile).pending.length) ? above.tile : null);
    /** @type {{tile: Sheet | null, area: Area, of: Spot}[]} */
    const standing = open.map((part) => ({ tile, area: part, of: above?.spot ?? spot }));
    if (own) standing.push({ tile: own, area, of: spot });
    else if (spot.level) standing.push(...this.finer(spot));
    return standing;
  }

  /** The tiles one level below a spot that are here. @param {Spot} spot */
  finer(spot) {
    const camera = /** @type {import("./camera.js").Camera} */ (this.camera);
    const found = [];
    for (const [down, right] of [[0, 0], [0, 1], [1, 0], [1, 1]]) {
      const of = { level: spot.level - 1, row: spot.row * 2 + down, column: spot.column * 2 + right };
      const tile = this.get(of);
      if (tile && !tile.pending.length && !tile.hidden) found.push({ tile, area: areaOf(of, camera), of });
    }
    return found;
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

/** @param {Spot} spot @param {{rows: number, columns: number}} of @returns {Area} */
function areaOf({ level, row, column }, { rows, columns }) {
  const span = SIDE * 2 ** level;
  return [row * span, Math.min(rows, (row + 1) * span), column * span, Math.min(columns, (column + 1) * span)];
}

/** @param {Area} area @param {Area} to @returns {Area} */
const cut = ([a, b, c, d], to) => [Math.max(a, to[0]), Math.min(b, to[1]), Math.max(c, to[2]), Math.min(d, to[3])];

/** Which part of a tile, in its cells, covers an area. @param {Area} area @param {Spot} of @returns {Box} */
function part([a, b, c, d], { level, row, column }) {
  const cell = 2 ** level;
  return [c / cell - column * SIDE, a / cell - row * SIDE, (d - c) / cell, (b - a) / cell];
}

/** Whether the mask hides any cell of a tile that is known. @param {Float32Array} values @param {number} columns @param {Area[]} pending */
function hides(values, columns, pending) {
  if (!pending.length) return values.some(Number.isNaN);
  const known = (/** @type {number} */ at) => {
    const [row, column] = [Math.floor(at / columns), at % columns];
    return !pending.some(([a, b, c, d]) => row >= a && row < b && column >= c && column < d);
  };
  return values.some((value, at) => Number.isNaN(value) && known(at));
}

/**
 * Where an area stands in the plot, its edges on the screen's dots so that neighbours meet without a seam.
 * @param {import("./camera.js").Camera} camera
 * @param {number} dots
 * @param {Box} plot
 * @returns {(area: Area) => Box}
 */
function edges({ left, top, zoom }, dots, plot) {
  const snap = (/** @type {number} */ at, /** @type {number} */ from) => Math.round((from + at) * dots) / dots - from;
  return ([a, b, c, d]) => {
    const [x, y] = [snap(left + c * zoom, plot[0]), snap(top + a * zoom, plot[1])];
    const [right, bottom] = [snap(left + d * zoom, plot[0]), snap(top + b * zoom, plot[1])];
    return [x, y, Math.max(1 / dots, right - x), Math.max(1 / dots, bottom - y)];
  };
}
