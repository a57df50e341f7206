// A text as its author wrote it, every unit a thing to point at. Only what is near the window is made
// of elements; the rest is plain text of the same layout, so nothing moves when it is drawn.

import { chunksOf, hitsOf, isSpecial, spansOf } from "./layout.js";
import { nameOf } from "./units.js";

/** @typedef {import("./source.js").Axis} Axis */
/** @typedef {import("./source.js").Unit} Unit */

/** How a unit looks. @typedef {{fill: string, ink: string, note: string, said: string}} Look */

const LETTERS = { short: 60, medium: 250 }; // units

export class TextPane {
  /**
   * @param {HTMLElement} root
   * @param {{point: (unit: number | null) => void, choose: (unit: number, how: {more: boolean, range: boolean}) => void}} on
   */
  constructor(root, on) {
    this.root = root;
    this.on = on;
    /** @type {Map<number, HTMLElement>} the units that are elements now */
    this.elements = new Map();
    /** @type {Map<Element, import("./layout.js").Chunk>} */
    this.chunks = new Map();
    /** @type {import("./layout.js").Span[]} */
    this.spans = [];
    /** @type {Map<number, number>} where each unit is among the spans */
    this.order = new Map();
    /** @type {(unit: number) => Look | null} */
    this.look = () => null;
    /** @type {Set<number>} */
    this.chosen = new Set();
    /** @type {Set<number>} */
    this.found = new Set();
    /** @type {number | null} */
    this.focus = null;
    this.near = new IntersectionObserver((entries) => this.reveal(entries), { rootMargin: "600px" });
    this.listen();
  }

  /** @param {Axis} axis @param {Unit} unit */
  show(axis, unit) {
    this.axis = axis;
    this.unit = unit;
    this.spans = spansOf(axis, unit);
    this.order = new Map(this.spans.map((span, at) => [span.unit, at]));
    this.near.disconnect();
    this.elements.clear();
    this.chunks.clear();
    this.root.replaceChildren();
    const size = this.spans.length < LETTERS.short ? "short" : this.spans.length < LETTERS.medium ? "medium" : "long";
    this.root.classList.remove("short", "medium", "long");
    this.root.classList.add(size);
    const chunks = chunksOf(axis.text, this.spans);
    /** @type {HTMLElement | null} */
    let block = null;
    for (const chunk of chunks) {
      block ??= this.root.appendChild(document.createElement("div"));
      block.className = "block";
      const element = block.appendChild(document.createElement("span"));
      element.textContent = axis.text.slice(chunk.start, chunk.end);
      this.chunks.set(element, chunk);
      if (chunk.line) block = null;
    }
    for (const element of this.chunks.keys()) this.near.observe(element);
    const [first] = this.chunks.keys();
    if (first) this.draw(/** @type {HTMLElement} */ (first)); // at once: there is something to see
  }

  /** @param {IntersectionObserverEntry[]} entries */
  reveal(entries) {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) this.draw(/** @type {HTMLElement} */ (target));
      else this.forget(/** @type {HTMLElement} */ (target));
    }
  }

  /** Make elements of a chunk's units. @param {HTMLElement} element */
  draw(element) {
    const chunk = this.chunks.get(element);
    if (!chunk || !this.axis || element.dataset.drawn) return;
    element.dataset.drawn = "yes";
    const { text } = this.axis;
    const parts = [];
    let at = chunk.start;
    for (const { unit, start, end } of this.spans.slice(chunk.first, chunk.last)) {
      if (start > at) parts.push(text.slice(at, start));
      const span = document.createElement("span");
      span.className = text.slice(start, end).trim() ? "word" : "word space";
      span.textContent = text.slice(start, end);
      span.dataset.word = String(unit);
      span.setAttribute("role", "button");
      span.tabIndex = -1;
      this.elements.set(unit, span);
      parts.push(span);
      at = end;
    }
    parts.push(text.slice(at, chunk.end));
    element.replaceChildren(...parts);
    for (const { unit } of this.spans.slice(chunk.first, chunk.last)) this.paintOne(unit);
  }

  /** A chunk far from the window is plain text again. @param {HTMLElement} element */
  forget(element) {
    const chunk = this.chunks.get(element);
    if (!chunk || !this.axis || !element.dataset.drawn || element.contains(document.activeElement)) return;
    delete element.dataset.drawn;
    for (const { unit } of this.spans.slice(chunk.first, chunk.last)) this.elements.delete(unit);
    element.textContent = this.axis.text.slice(chunk.start, chunk.end);
  }

  /**
   * @param {(unit: number) => Look | null} look
   * @param {Iterable<number>} chosen
   */
  paint(look, chosen) {
    this.look = look;
    this.chosen = new Set(chosen);
    this.focus = [...this.chosen].find((unit) => this.order.has(unit)) ?? this.spans[0]?.unit ?? null;
    for (const unit of this.elements.keys()) this.paintOne(unit);
  }

  /** @param {number} unit */
  paintOne(unit) {
    const span = this.elements.get(unit);
    if (!span || !this.axis || !this.unit) return;
    const look = this.look(unit);
    span.style.backgroundColor = look?.fill ?? "";
    span.style.color = look?.ink ?? "";
    span.dataset.weight = look?.note ?? "";
    const chosen = this.chosen.has(unit);
    span.setAttribute("aria-pressed", String(chosen));
    span.classList.toggle("found", this.found.has(unit));
    span.tabIndex = unit === this.focus ? 0 : -1;
    const name = nameOf(this.axis, this.unit, unit);
    span.setAttribute("aria-label", chosen ? `${name}, chosen` : look?.said ? `${name}: ${look.said}` : name);
  }

  /** Mark what a search found. @param {string} sought @returns {number[][]} the units of each hit */
  search(sought) {
    const hits = this.axis ? hitsOf(this.axis.text, this.spans, sought) : [];
    this.found = new Set(hits.flat());
    for (const unit of this.elements.keys()) this.paintOne(unit);
    return hits;
  }

  /** Bring a unit into sight, its elements made if they are not. @param {number} unit */
  reach(unit) {
    const place = this.order.get(unit);
    if (place === undefined) return null;
    for (const [element, chunk] of this.chunks) {
      if (chunk.first <= place && place < chunk.last) this.draw(/** @type {HTMLElement} */ (element));
    }
    const span = this.elements.get(unit) ?? null;
    span?.scrollIntoView({ block: "nearest" });
    return span;
  }

  /** @param {number} unit @returns {boolean} */
  has(unit) {
    return this.order.has(unit);
  }

  /** @param {number} unit @returns {boolean} */
  special(unit) {
    return this.axis && this.unit ? isSpecial(this.axis, this.unit, unit) : false;
  }

  /** The units whose elements are in sight, in their order. @returns {[number, HTMLElement][]} */
  inSight() {
    const whole = this.axis ? this.axis.text.length <= 12_000 : false;
    return [...this.elements]
      .filter(([, span]) => {
        const box = span.getBoundingClientRect();
        return whole || (box.bottom > 0 && box.top < innerHeight);
      })
      .sort((a, b) => (this.order.get(a[0]) ?? 0) - (this.order.get(b[0]) ?? 0));
  }

  listen() {
    const unitOf = (/** @type {Event} */ event) => {
      const span = /** @type {HTMLElement} */ (event.target).closest(".word");
      return span ? Number(/** @type {HTMLElement} */ (span).dataset.word) : null;
    };
    this.root.addEventListener("pointerover", (event) => {
      if (event.pointerType === "mouse") this.on.point(unitOf(event));
    });
    this.root.addEventListener("pointerleave", () => this.on.point(null));
    this.root.addEventListener("mousedown", (event) => {
      if (event.shiftKey) event.preventDefault(); // chooses words, does not mark text
    });
    this.root.addEventListener("click", (event) => {
      const unit = unitOf(event);
      if (unit !== null) this.on.choose(unit, { more: event.ctrlKey || event.metaKey, range: event.shiftKey });
    });
    this.root.addEventListener("focusin", (event) => {
      if (/** @type {HTMLElement} */ (event.target).matches(":focus-visible")) this.on.point(unitOf(event));
    });
    this.root.addEventListener("focusout", () => this.on.point(null));
    this.root.addEventListener("keydown", (event) => {
      const unit = unitOf(event);
      if (unit === null) return;
      const how = { more: event.ctrlKey || event.metaKey, range: event.shiftKey };
      if (event.key === "Enter" || event.key === " ") this.on.choose(unit, how);
      else if (!this.go(unit, event.key)) return;
      event.preventDefault();
    });
  }

  /**
   * Move the focus from a unit; left and right follow the direction of the writing.
   * @param {number} unit @param {string} key @returns {boolean}
   */
  go(unit, key) {
    const at = this.order.get(unit) ?? 0;
    const here = this.elements.get(unit);
    const rtl = here ? getComputedStyle(/** @type {HTMLElement} */ (here.parentElement)).direction === "rtl" : false;
    /** @type {Record<string, number>} */
    const steps = { ArrowRight: rtl ? -1 : 1, ArrowLeft: rtl ? 1 : -1, ArrowDown: 1, ArrowUp: -1 };
    const to = key === "Home" ? 0 : key === "End" ? this.spans.length - 1 : at + (steps[key] ?? NaN);
    const next = this.spans[to];
    if (!next) return false;
    this.reach(next.unit)?.focus();
    return true;
  }

  stop() {
    this.near.disconnect();
  }
}
