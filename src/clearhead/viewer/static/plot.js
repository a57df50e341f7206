// One picture among several that move together: its tiles, drawn where a camera looks.

import { channels, css } from "./colour.js";
import { make } from "./dom.js";
import { Tiles, lastLevel, levelFor, spotsIn, SIDE } from "./tiles.js";

/** @typedef {import("./camera.js").Camera} Camera */
/** @typedef {import("./tiles.js").Tile} Tile */
/** @typedef {import("./tiles.js").Spot} Spot */

const MOST_TILES = 48;

export class Plot {
  /** @param {(error: unknown) => void} failed @param {() => void} changed  a tile has come */
  constructor(failed, changed) {
    this.failed = failed;
    this.changed = changed;
    this.key = "";
    /** @type {Tiles | null} */
    this.tiles = null;
    this.level = 0;
    this.last = 0;
    this.canvas = make("canvas", "", { tabindex: 0, role: "img" });
  }

  /**
   * What is drawn: tiles of a picture that `key` tells from others.
   * @param {string} key @param {Camera} camera
   * @param {(spot: Spot, signal: AbortSignal) => Promise<Tile>} fetch
   */
  use(key, camera, fetch) {
    this.camera = camera;
    if (key === this.key) return;
    this.key = key;
    this.tiles?.close();
    this.last = lastLevel(camera.rows, camera.columns);
    this.tiles = new Tiles(fetch, { most: MOST_TILES, changed: this.changed, failed: this.failed });
  }

  /** Ask for what is seen; gives the tiles of it that are here. @returns {Tile[]} */
  look() {
    const { camera, tiles } = this;
    if (!camera || !tiles) return [];
    this.level = levelFor(camera.zoom, this.last);
    const spots = spotsIn(this.level, camera.bounds, [camera.y, camera.x]);
    tiles.want([{ level: this.last, row: 0, column: 0 }, ...spots]);
    return spots.map((spot) => tiles.get(spot)).filter((tile) => tile !== undefined);
  }

  /**
   * @param {(value: number) => number[]} colour @param {string} name  equal for equal colours
   * @param {{paper: string, hidden: string[]}} palette
   * @param {[number, number] | null} at  the cell that is pointed at
   */
  draw(colour, name, palette, at) {
    const { camera, tiles, canvas } = this;
    if (!camera || !tiles) return;
    const dots = window.devicePixelRatio || 1;
    canvas.width = Math.round(camera.width * dots);
    canvas.height = Math.round(camera.height * dots);
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.scale(dots, dots);
    context.fillStyle = palette.paper;
    context.fillRect(0, 0, camera.width, camera.height);
    context.imageSmoothingEnabled = false;
    for (const spot of spotsIn(this.level, camera.bounds, [camera.y, camera.x])) {
      const tile = tiles.get(spot);
      const above = tile ? null : tiles.above(spot, this.last);
      if (tile) this.place(context, painted(tile, colour, name, palette), spot, camera);
      else if (above && above.spot.level === this.last) this.place(context, painted(above.tile, colour, name, palette), above.spot, camera);
    }
    if (!at) return;
    context.strokeStyle = css([128, 128, 128]);
    context.strokeRect(camera.left + at[1] * camera.zoom, camera.top + at[0] * camera.zoom, camera.zoom, camera.zoom);
  }

  /** @param {CanvasRenderingContext2D} context @param {HTMLCanvasElement} picture @param {Spot} spot @param {Camera} camera */
  place(context, picture, { level, row, column }, camera) {
    const cell = 2 ** level * camera.zoom;
    const [x, y] = [camera.left + column * SIDE * cell, camera.top + row * SIDE * cell];
    context.drawImage(picture, x, y, picture.width * cell, picture.height * cell);
  }

  /** The value of the cell that covers a unit, at the level that is seen. @param {number} row @param {number} column */
  value(row, column) {
    const [r, c] = [row >> this.level, column >> this.level];
    const tile = this.tiles?.get({ level: this.level, row: Math.floor(r / SIDE), column: Math.floor(c / SIDE) });
    return tile?.values[(r % SIDE) * tile.columns + (c % SIDE)];
  }

  close() {
    this.tiles?.close();
    this.key = "";
  }
}

/**
 * A tile as pixels, kept with it until its colours change.
 * @param {Tile} tile @param {(value: number) => number[]} colour @param {string} name @param {{hidden: string[], paper: string}} palette
 * @returns {HTMLCanvasElement}
 */
function painted(tile, colour, name, palette) {
  if (tile.drawn?.name === name && tile.drawn.done === tile.done) return tile.drawn.canvas;
  const canvas = make("canvas", "", { width: tile.columns, height: tile.rows });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(tile.columns, tile.rows);
  const gap = channels(tile.done ? palette.hidden[0] : palette.paper); // hidden, or still to come
  tile.values.forEach((value, at) => {
    const [red, green, blue] = Number.isNaN(value) ? gap : colour(value);
    image.data.set([red, green, blue, 255], 4 * at);
  });
  context.putImageData(image, 0, 0);
  tile.drawn = { canvas, name, done: tile.done };
  return canvas;
}
