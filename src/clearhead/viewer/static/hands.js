// What hands do to the map: drag, wheel, pinch, click and keys, as moves of its camera and changes of the state.

import { within } from "./camera.js";
import { Gestures } from "./gestures.js";

const KEY_STEP = 10; // pixels, at least, that an arrow key moves by
const CLOSER = 2.5; // how much a double click zooms
const TURN = 180; // ms that it takes

export class Hands {
  /** @param {import("./map.js").MapView} map */
  constructor(map) {
    this.map = map;
    /** @type {{row: number | null, column: number | null} | null} what was pinned before the last tap, which may be half of two */
    this.beforeTap = null;
    this.gestures = new Gestures(this.map.canvas, {
      pan: (dx, dy) => this.map.act((camera) => camera.pan(dx, dy)),
      zoom: (x, y, factor) => this.map.act((camera) => camera.zoomAt(...this.map.inPlot(x, y), factor)),
      tap: (x, y) => this.tap(x, y),
      twice: (x, y, out) => this.twice(x, y, out),
      point: (x, y) => this.map.point(this.map.under(x, y)),
      leave: () => this.map.point(null),
      select: (from, to, done) => this.select(from, to, done),
    });
    this.map.canvas.addEventListener("keydown", (event) => this.key(event));
    this.map.canvas.addEventListener("blur", () => this.map.point(null));
  }

  /** @param {number} x @param {number} y */
  tap(x, y) {
    const at = this.map.under(x, y);
    const { row, column } = this.map.app.state;
    this.beforeTap = { row, column };
    if (!at) return;
    this.map.point(at);
    if (at[0] !== null) this.map.app.set({ row: at[0] === row ? null : at[0] });
    else if (at[1] !== null) this.map.app.set({ column: at[1] === column ? null : at[1] });
  }

  /** @param {number} x @param {number} y @param {boolean} out */
  twice(x, y, out) {
    if (this.beforeTap) this.map.app.set(this.beforeTap);
    const start = this.map.camera?.zoom ?? 1;
    const factor = out ? 1 / CLOSER : CLOSER;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.map.act((camera) => camera.zoomAt(...this.map.inPlot(x, y), factor));
      return;
    }
    const began = performance.now();
    const step = (/** @type {number} */ now) => {
      const part = within((now - began) / TURN, 0, 1);
      const eased = 1 - (1 - part) ** 3;
      this.map.act((camera) => camera.zoomAt(...this.map.inPlot(x, y), (start * factor ** eased) / camera.zoom));
      if (part < 1) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  /**
   * @param {[number, number]} from
   * @param {[number, number]} to
   * @param {boolean} done
   */
  select(from, to, done) {
    const { camera, plot } = this.map;
    if (!camera || !plot) return;
    const ends = [from, to].map(([x, y]) => camera.unitAt(x - plot[0], y - plot[1]));
    const [a, b] = ends.map(([row]) => within(Math.floor(row), 0, camera.rows - 1)).sort((p, q) => p - q);
    const [c, d] = ends.map(([, column]) => within(Math.floor(column), 0, camera.columns - 1)).sort((p, q) => p - q);
    this.map.choosing = /** @type {[number, number, number, number]} */ ([a, b + 1, c, d + 1]);
    if (done) {
      const span = this.map.choosing;
      this.map.choosing = null;
      this.map.app.set({ span });
    }
    this.map.soon();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { camera } = this.map;
    if (!camera || event.ctrlKey || event.metaKey || event.altKey) return;
    const { row, column, span } = this.map.app.state;
    const arrow = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const middle = () => this.map.inPlot(...this.pixelOf(this.map.pointed ?? [camera.y, camera.x]));
    if (arrow) this.step(arrow[0], arrow[1], event.shiftKey);
    else if (event.key === "+" || event.key === "=") this.map.act((c) => c.zoomAt(...middle(), 1.5));
    else if (event.key === "-" || event.key === "_") this.map.act((c) => c.zoomAt(...middle(), 1 / 1.5));
    else if (event.key === "0" || event.key === "Home") this.map.act((c) => c.fit());
    else if (event.key === "PageDown") this.map.act((c) => c.pan(0, -c.height * 0.8));
    else if (event.key === "PageUp") this.map.act((c) => c.pan(0, c.height * 0.8));
    else if (event.key === "Enter" && this.map.pointed) {
      const [r, c] = this.map.pointed;
      this.map.app.set(event.shiftKey ? { column: c === column ? null : c } : { row: r === row ? null : r });
    } else if (event.key === "z" && span) this.map.act((c) => c.frame(span));
    else if (event.key === "[") this.map.controls.picker.walk(-1);
    else if (event.key === "]") this.map.controls.picker.walk(1);
    else if (event.key === "Escape" && span) this.map.app.set({ span: null });
    else if (event.key === "Escape" && (row !== null || column !== null)) this.map.app.set({ row: null, column: null });
    else return;
    event.preventDefault();
  }

  /** The middle of a cell in pixels of the canvas. @param {[number, number]} cell @returns {[number, number]} */
  pixelOf([row, column]) {
    const [left, top] = this.map.plot ?? [0, 0];
    const { camera } = this.map;
    return camera ? [left + camera.left + (column + 0.5) * camera.zoom, top + camera.top + (row + 0.5) * camera.zoom] : [0, 0];
  }

  /**
   * Move the cursor by a cell, or by as many as an eye can tell; with shift, the chosen part grows to it.
   * @param {number} down
   * @param {number} right
   * @param {boolean} choosing
   */
  step(down, right, choosing) {
    const { camera } = this.map;
    if (!camera) return;
    const by = camera.zoom >= KEY_STEP / 2 ? 1 : Math.ceil(KEY_STEP / camera.zoom);
    const [a, , c] = camera.bounds;
    const [row, column] = this.map.pointed ?? [a - down * by, c - right * by];
    const next = /** @type {[number, number]} */ ([within(row + down * by, 0, camera.rows - 1), within(column + right * by, 0, camera.columns - 1)]);
    const { span } = this.map.app.state;
    if (choosing) {
      const [r0, r1, c0, c1] = span ?? [row, row + 1, column, column + 1];
      this.map.app.set({ span: [Math.min(r0, next[0]), Math.max(r1, next[0] + 1), Math.min(c0, next[1]), Math.max(c1, next[1] + 1)] });
    }
    this.map.act((moved) => moved.reveal(...next));
    this.map.point(next, true);
  }
}
