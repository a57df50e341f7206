// Which part of a matrix a window shows: the unit in its middle, and how many pixels wide a unit is.

/** @typedef {import("./state.js").Place} Place */

const LARGEST = 96; // pixels of a unit, at most
const THIN = 40; // pixels that the shorter side of a long matrix keeps when the whole is looked at

/** @param {number} value @param {number} low @param {number} high */
export const within = (value, low, high) => Math.max(low, Math.min(high, value));

export class Camera {
  /**
   * @param {number} rows
   * @param {number} columns
   */
  constructor(rows, columns) {
    this.rows = rows;
    this.columns = columns;
    this.width = 1;
    this.height = 1;
    this.x = columns / 2;
    this.y = rows / 2;
    this.zoom = 1;
  }

  /**
   * The window's size in pixels. A window that showed the whole still does.
   * @param {number} width
   * @param {number} height
   */
  resize(width, height) {
    const whole = this.zoom <= this.fitting * 1.0001;
    this.width = Math.max(1, width);
    this.height = Math.max(1, height);
    if (whole) this.fit();
    else this.settle();
  }

  /** The zoom at which the whole is seen; of a very long matrix, its short side is kept visible instead. */
  get fitting() {
    const whole = Math.min(this.width / this.columns, this.height / this.rows);
    const thin = THIN / Math.min(this.rows, this.columns);
    return Math.min(Math.max(whole, Math.min(thin, Math.max(this.width / this.columns, this.height / this.rows))), LARGEST);
  }

  /** The smallest and the largest zoom. @returns {[number, number]} */
  get zooms() {
    return [this.fitting, Math.max(LARGEST, this.fitting)];
  }

  fit() {
    this.zoom = this.fitting;
    this.x = 0;
    this.y = 0;
    this.settle();
  }

  /** Keep the zoom within bounds and the window on the matrix; one smaller than the window stands top left. */
  settle() {
    this.zoom = within(this.zoom, ...this.zooms);
    const [halfWidth, halfHeight] = [this.width / this.zoom / 2, this.height / this.zoom / 2];
    this.x = halfWidth * 2 >= this.columns ? halfWidth : within(this.x, halfWidth, this.columns - halfWidth);
    this.y = halfHeight * 2 >= this.rows ? halfHeight : within(this.y, halfHeight, this.rows - halfHeight);
  }

  /** Pixels from the window's left edge to column 0. */
  get left() {
    return this.width / 2 - this.x * this.zoom;
  }

  /** Pixels from the window's top to row 0. */
  get top() {
    return this.height / 2 - this.y * this.zoom;
  }

  /**
   * Move what is seen by so many pixels.
   * @param {number} dx
   * @param {number} dy
   */
  pan(dx, dy) {
    this.x -= dx / this.zoom;
    this.y -= dy / this.zoom;
    this.settle();
  }

  /**
   * Zoom by a factor; what is under the pixel (px, py) stays there, unless an edge is in the way.
   * @param {number} px
   * @param {number} py
   * @param {number} factor
   */
  zoomAt(px, py, factor) {
    const [row, column] = this.unitAt(px, py);
    this.zoom = within(this.zoom * factor, ...this.zooms);
    this.x = column - (px - this.width / 2) / this.zoom;
    this.y = row - (py - this.height / 2) / this.zoom;
    this.settle();
  }

  /**
   * Where a pixel is, in units and parts of units; may lie outside the matrix.
   * @param {number} px
   * @param {number} py
   * @returns {[row: number, column: number]}
   */
  unitAt(px, py) {
    return [(py - this.top) / this.zoom, (px - this.left) / this.zoom];
  }

  /** What is at least partly seen: rows [a, b), columns [c, d). @returns {[number, number, number, number]} */
  get bounds() {
    const [row, column] = this.unitAt(0, 0);
    const [lastRow, lastColumn] = this.unitAt(this.width, this.height);
    return [
      within(Math.floor(row), 0, this.rows),
      within(Math.ceil(lastRow), 0, this.rows),
      within(Math.floor(column), 0, this.columns),
      within(Math.ceil(lastColumn), 0, this.columns),
    ];
  }

  /** Whether all of the matrix is seen. */
  get whole() {
    return this.columns * this.zoom <= this.width + 0.5 && this.rows * this.zoom <= this.height + 0.5;
  }

  /**
   * Show rows [a, b) and columns [c, d) as large as they fit, with a little around them.
   * @param {[number, number, number, number]} span
   */
  frame([a, b, c, d]) {
    this.zoom = within(0.9 * Math.min(this.width / (d - c), this.height / (b - a)), ...this.zooms);
    this.x = (c + d) / 2;
    this.y = (a + b) / 2;
    this.settle();
  }

  /**
   * Move as little as shows the unit.
   * @param {number} row
   * @param {number} column
   */
  reveal(row, column) {
    const [halfWidth, halfHeight] = [this.width / this.zoom / 2, this.height / this.zoom / 2];
    this.x = within(this.x, column + 1 - halfWidth, column + halfWidth);
    this.y = within(this.y, row + 1 - halfHeight, row + halfHeight);
    this.settle();
  }

  /** @returns {Place} */
  get place() {
    return { x: this.x, y: this.y, zoom: this.zoom };
  }

  /** @param {Place} place */
  set place({ x, y, zoom }) {
    this.x = x;
    this.y = y;
    this.zoom = zoom;
    this.settle();
  }
}
