// The whole map, small, and which part of it is seen.

import { make } from "./dom.js";

const SIDE = 116; // pixels of its longer side
const LEAST = 5; // pixels of the frame, however small the part is

export class Minimap {
  /** @param {(x: number, y: number) => void} go  the place, in units, to be brought to the middle */
  constructor(go) {
    this.canvas = make("canvas", "minimap", { "aria-hidden": "true", hidden: true });
    this.go = go;
    /** @type {import("./camera.js").Camera | null} */
    this.camera = null;
    const move = (/** @type {PointerEvent} */ event) => {
      if (!this.camera || !event.buttons) return;
      const box = this.canvas.getBoundingClientRect();
      const { columns, rows } = this.camera;
      go(((event.clientX - box.left) / box.width) * columns, ((event.clientY - box.top) / box.height) * rows);
      event.preventDefault();
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      move(event);
    });
    this.canvas.addEventListener("pointermove", move);
  }

  /**
   * @param {import("./camera.js").Camera} camera
   * @param {HTMLCanvasElement | null} overview  all cells of the coarsest level
   * @param {import("./colour.js").Palette} palette
   */
  update(camera, overview, palette) {
    this.camera = camera;
    this.canvas.hidden = camera.whole || !overview;
    if (this.canvas.hidden || !overview) return;
    const scale = SIDE / Math.max(camera.columns, camera.rows);
    const [width, height] = [Math.max(12, camera.columns * scale), Math.max(12, camera.rows * scale)];
    const dots = devicePixelRatio || 1;
    const [across, down] = [Math.round(width * dots), Math.round(height * dots)];
    if (this.canvas.width !== across || this.canvas.height !== down) {
      this.canvas.width = across;
      this.canvas.height = down;
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    context.setTransform(dots, 0, 0, dots, 0, 0);
    context.fillStyle = palette.hidden[1];
    context.fillRect(0, 0, width, height);
    context.imageSmoothingEnabled = overview.width > across;
    context.drawImage(overview, 0, 0, width, height);
    const [top, left] = camera.unitAt(0, 0);
    const part = (/** @type {number} */ from, /** @type {number} */ seen, /** @type {number} */ all, /** @type {number} */ size) => {
      const [start, end] = [Math.max(0, from / all) * size, Math.min(1, (from + seen) / all) * size];
      const long = Math.max(LEAST, end - start);
      return [Math.min(Math.max(0, (start + end - long) / 2), size - long), long];
    };
    const [x, w] = part(left, camera.width / camera.zoom, camera.columns, width);
    const [y, h] = part(top, camera.height / camera.zoom, camera.rows, height);
    context.strokeStyle = palette.mark;
    context.lineWidth = 2;
    context.strokeRect(x + 1, y + 1, Math.max(1, w - 2), Math.max(1, h - 2));
  }
}
