// Wheel, drag, pinch, tap: what fingers and mice do, as moves and zooms in pixels of an element.

const STILL = 5; // pixels that a tap may wander
const TWICE = 320; // ms between the taps of a double tap
const GLIDE = 260; // ms in which a glide falls to 1/e
const SLOWEST = 0.03; // pixels per ms at which it ends
const LINE = 18; // pixels of a wheel's line
const PER_PIXEL = 0.0022; // of the logarithm of the zoom
const PER_PINCHED_PIXEL = 0.01; // a trackpad's pinch comes as a wheel with small steps
const LARGEST_STEP = 0.7;

/**
 * @typedef {object} Gestured
 * @property {(dx: number, dy: number) => void} pan
 * @property {(x: number, y: number, factor: number) => void} zoom
 * @property {(x: number, y: number, kind: string) => void} tap
 * @property {(x: number, y: number, out: boolean) => void} twice
 * @property {(x: number, y: number) => void} point
 * @property {() => void} leave
 * @property {(from: [number, number], to: [number, number], done: boolean) => void} select  a drag with shift held
 */

/** How much a wheel event zooms. @param {{deltaY: number, deltaMode: number, ctrlKey: boolean}} event */
export function zoomOf({ deltaY, deltaMode, ctrlKey }) {
  const pixels = deltaY * [1, LINE, 400][deltaMode];
  const log = -pixels * (ctrlKey ? PER_PINCHED_PIXEL : PER_PIXEL);
  return Math.exp(Math.max(-LARGEST_STEP, Math.min(LARGEST_STEP, log)));
}

export class Gestures {
  /**
   * @param {HTMLElement} element
   * @param {Gestured} on
   */
  constructor(element, on) {
    this.element = element;
    this.on = on;
    /** @type {Map<number, [number, number]>} */
    this.fingers = new Map();
    /** @type {[number, number]} */
    this.began = [0, 0];
    this.moved = false;
    this.selecting = false;
    this.speed = [0, 0];
    this.lastMove = 0;
    this.lastTap = { at: -Infinity, x: 0, y: 0 };
    this.gliding = 0;
    element.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    element.addEventListener("pointerdown", (event) => this.down(event));
    element.addEventListener("pointermove", (event) => this.move(event));
    element.addEventListener("pointerup", (event) => this.up(event));
    element.addEventListener("pointercancel", (event) => this.lost(event));
    element.addEventListener("pointerleave", () => this.fingers.size || on.leave());
  }

  /** @param {MouseEvent} event @returns {[number, number]} */
  place(event) {
    const box = this.element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    event.preventDefault();
    this.halt();
    const [x, y] = this.place(event);
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const unit = [1, LINE, 400][event.deltaMode];
      const across = event.deltaX || event.deltaY;
      this.on.pan(-across * unit, event.deltaX ? -event.deltaY * unit : 0);
    } else this.on.zoom(x, y, zoomOf(event));
    this.on.point(x, y);
  }

  /** @param {PointerEvent} event */
  down(event) {
    if (event.pointerType === "mouse" && event.button !== 0) return;
    this.halt();
    this.element.setPointerCapture(event.pointerId);
    const at = this.place(event);
    if (!this.fingers.size) {
      this.began = at;
      this.moved = false;
      this.selecting = event.shiftKey;
      this.speed = [0, 0];
      this.lastMove = event.timeStamp;
    } else this.moved = true; // two fingers are no tap
    this.fingers.set(event.pointerId, at);
  }

  /** @param {PointerEvent} event */
  move(event) {
    const at = this.place(event);
    const before = this.fingers.get(event.pointerId);
    if (!before) {
      if (event.pointerType !== "touch") this.on.point(...at);
      return;
    }
    if (!this.moved && Math.hypot(at[0] - this.began[0], at[1] - this.began[1]) < STILL) return;
    this.moved = true;
    const pair = this.fingers.size > 1 ? [...this.fingers.values()] : null;
    this.fingers.set(event.pointerId, at);
    if (pair) this.pinch(pair, [...this.fingers.values()]);
    else if (this.selecting) this.on.select(this.began, at, false);
    else this.drag(at[0] - before[0], at[1] - before[1], event);
  }

  /**
   * @param {number} dx
   * @param {number} dy
   * @param {PointerEvent} event
   */
  drag(dx, dy, event) {
    this.on.pan(dx, dy);
    const time = Math.max(1, event.timeStamp - this.lastMove);
    this.lastMove = event.timeStamp;
    const fresh = Math.min(1, time / 40); // how much of the speed is this move's
    this.speed = [dx / time, dy / time].map((v, i) => this.speed[i] * (1 - fresh) + v * fresh);
    if (event.pointerType !== "touch") this.on.point(...this.place(event));
  }

  /**
   * @param {[number, number][]} before
   * @param {[number, number][]} now
   */
  pinch(before, now) {
    const middle = (/** @type {[number, number][]} */ [a, b]) => [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2];
    const apart = (/** @type {[number, number][]} */ [a, b]) => Math.max(8, Math.hypot(a[0] - b[0], a[1] - b[1]));
    const [from, to] = [middle(before), middle(now)];
    this.on.pan(to[0] - from[0], to[1] - from[1]);
    this.on.zoom(to[0], to[1], apart(now) / apart(before));
  }

  /** @param {PointerEvent} event */
  up(event) {
    if (!this.fingers.delete(event.pointerId)) return;
    const at = this.place(event);
    if (this.fingers.size) {
      this.speed = [0, 0];
      return;
    }
    if (!this.moved) this.tapped(at, event);
    else if (this.selecting) this.on.select(this.began, at, true);
    else if (event.timeStamp - this.lastMove < 60) this.glide();
  }

  /** @param {PointerEvent} event */
  lost(event) {
    this.fingers.delete(event.pointerId);
    this.moved = true;
  }

  /**
   * @param {[number, number]} at
   * @param {PointerEvent} event
   */
  tapped([x, y], event) {
    const last = this.lastTap;
    const again = event.timeStamp - last.at < TWICE && Math.hypot(x - last.x, y - last.y) < 24;
    this.lastTap = again ? { at: -Infinity, x, y } : { at: event.timeStamp, x, y };
    if (again) this.on.twice(x, y, event.shiftKey);
    else this.on.tap(x, y, event.pointerType);
  }

  /** Go on as fast as the hand let go, ever slower. */
  glide() {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    let before = performance.now();
    const step = (/** @type {number} */ now) => {
      const time = Math.min(50, now - before);
      before = now;
      const [vx, vy] = this.speed;
      if (Math.hypot(vx, vy) < SLOWEST) return;
      this.on.pan(vx * time, vy * time);
      this.speed = this.speed.map((v) => v * Math.exp(-time / GLIDE));
      this.gliding = requestAnimationFrame(step);
    };
    this.gliding = requestAnimationFrame(step);
  }

  halt() {
    cancelAnimationFrame(this.gliding);
  }
}
