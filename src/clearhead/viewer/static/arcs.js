// Arcs between the words of a short text: what is read to the left above the line, to the right below.

import { make } from "./dom.js";
import { isSpecial } from "./layout.js";
import { shortened, shown } from "./labels.js";
import { pictureOf } from "./reading.js";
import { isCancelled } from "./source.js";
import { count, nameOf } from "./units.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./source.js").About} About */
/** @typedef {import("./state.js").State} State */

/** @typedef {{from: number, to: number, weight: number}} Link */

export const MOST_UNITS = 160; // longer texts have no arcs
const MOST_ARCS = 120;
const ARCS_OF_CHOSEN = 24; // drawn even where they are weaker
const GAP = 14;
const NS = "http://www.w3.org/2000/svg";

/**
 * The strongest links of a matrix, strongest first.
 * @param {Float32Array} weights  (rows, columns)
 * @param {number} columns
 * @param {(row: number, column: number) => boolean} listed
 * @param {number} [most]
 * @returns {Link[]}
 */
export function strongestLinks(weights, columns, listed, most = MOST_ARCS) {
  /** @type {Link[]} */
  const links = [];
  weights.forEach((weight, at) => {
    const [from, to] = [Math.floor(at / columns), at % columns];
    if (weight > 0 && listed(from, to)) links.push({ from, to, weight });
  });
  return links.sort((a, b) => b.weight - a.weight || a.from - b.from || a.to - b.to).slice(0, most);
}

/**
 * Where each word of a line stands: its middle; and how long the line is.
 * @param {number[]} widths @returns {{middles: number[], length: number}}
 */
export function placed(widths) {
  let at = GAP;
  const middles = widths.map((width) => {
    const middle = at + width / 2;
    at += width + GAP;
    return middle;
  });
  return { middles, length: at };
}

/**
 * The arc of a link from x to x: above the line to the left, below it to the right, a loop to itself.
 * @param {number} from @param {number} to @param {number} above  the y above the words @param {number} below
 */
export function arc(from, to, above, below) {
  const y = to > from ? below : above;
  const way = to > from ? 1 : -1;
  if (from === to) return `M${from - 4} ${y} C${from - 16} ${y - 22} ${from + 16} ${y - 22} ${from + 4} ${y}`;
  const height = way * height_of(Math.abs(to - from));
  return `M${from.toFixed(1)} ${y} C${from.toFixed(1)} ${(y + height).toFixed(1)} ${to.toFixed(1)} ${(y + height).toFixed(1)} ${to.toFixed(1)} ${y}`;
}

/** How far the control points of an arc are from the line. @param {number} span */
const height_of = (span) => Math.min(240, 14 + 0.62 * span);

/** A curve from a word above to one below. @param {number} from @param {number} to @param {number} top @param {number} bottom */
export function strand(from, to, top, bottom) {
  const middle = (top + bottom) / 2;
  return `M${from.toFixed(1)} ${top} C${from.toFixed(1)} ${middle} ${to.toFixed(1)} ${middle} ${to.toFixed(1)} ${bottom}`;
}

export class ArcsView {
  /** @param {App} app @param {(unit: number) => void} choose */
  constructor(app, choose) {
    this.app = app;
    this.choose = choose;
    this.asking = new AbortController();
    /** @type {Link[]} */
    this.links = [];
    /** @type {Set<number>} */
    this.chosen = new Set();
    this.toggle = make("button", "chip", { type: "button", "aria-pressed": "false" }, "arcs");
    this.toggle.addEventListener("click", () => app.set({ arcs: app.state.arcs === "on" ? "off" : "on" }));
    this.note = make("p", "fine");
    this.frame = make("div", "arcs-frame", { tabindex: 0, role: "region", "aria-label": "Arcs between words" });
    this.root = make("div", "arcs", {}, make("div", "bar", {}, this.toggle, this.note), this.frame);
  }

  /** @param {State} state @param {About} about */
  show(state, about) {
    this.about = about;
    this.state = state;
    const size = Math.max(count(about.rows, state.unit), count(about.columns ?? about.rows, state.unit));
    const on = state.arcs === "on" && size <= MOST_UNITS;
    this.toggle.setAttribute("aria-pressed", String(on));
    this.toggle.hidden = size > MOST_UNITS;
    this.frame.hidden = !on;
    this.note.textContent = on ? "" : size > MOST_UNITS ? `Arcs are for texts of up to ${MOST_UNITS} ${state.unit}.` : "draws the strongest links between all words";
    if (on) void this.read(state, about).catch((error) => isCancelled(error) || this.app.say(error));
  }

  /** @param {State} state @param {About} about */
  async read(state, about) {
    this.asking.abort();
    this.asking = new AbortController();
    const columns = count(about.columns ?? about.rows, state.unit);
    const question = { ...pictureOf(state), rows: [0, count(about.rows, state.unit)], columns: [0, columns] };
    const answer = await this.app.source.ask(state.run, "window", question, this.asking.signal);
    const shown = (/** @type {import("./source.js").Axis} */ axis, /** @type {number} */ at) => state.listed.special || !isSpecial(axis, state.unit, at);
    const listed = (/** @type {number} */ row, /** @type {number} */ column) => {
      if (!about.columns && row === column && !state.listed.self) return false;
      return shown(about.rows, row) && shown(about.columns ?? about.rows, column);
    };
    this.strongest = (/** @type {(link: Link) => boolean} */ which, /** @type {number} */ most) =>
      strongestLinks(answer.arrays[0], columns, (from, to) => listed(from, to) && which({ from, to, weight: 0 }), most);
    this.draw(state, about);
  }

  stop() {
    this.asking.abort();
  }

  /** @param {Iterable<number>} chosen */
  mark(chosen) {
    this.chosen = new Set(chosen);
    if (!this.frame.hidden && this.about && this.state) this.draw(this.state, this.about);
  }

  /** The geometry of what is drawn: words with their places, and curves. */
  plan() {
    const { state, about } = this;
    if (!state || !about) return null;
    const context = /** @type {CanvasRenderingContext2D} */ (make("canvas", "").getContext("2d"));
    context.font = `15px ${getComputedStyle(this.frame).fontFamily}`;
    const line = (/** @type {import("./source.js").Axis} */ axis) => {
      const kept = Array.from({ length: count(axis, state.unit) }, (_, at) => at).filter((at) => state.listed.special || !isSpecial(axis, state.unit, at));
      const names = kept.map((at) => shortened(nameOf(axis, state.unit, at), 18));
      const { middles, length } = placed(names.map((name) => context.measureText(name).width));
      return { kept, names, length, at: new Map(kept.map((unit, place) => [unit, middles[place]])) };
    };
    const rows = line(about.rows);
    const columns = about.columns ? line(about.columns) : rows;
    const place = (/** @type {Link} */ { from, to }) => [rows.at.get(from) ?? 0, columns.at.get(to) ?? 0];
    const spans = this.links.map((link) => place(link));
    const reach = (/** @type {(from: number, to: number) => boolean} */ side) =>
      Math.max(0, ...spans.filter(([from, to]) => side(from, to)).map(([from, to]) => 0.75 * height_of(Math.abs(to - from))));
    const above = about.columns ? 30 : Math.max(24, reach((from, to) => to <= from)) + 8;
    const lower = about.columns ? above + 190 : above;
    const below = about.columns ? lower + 24 : above + 28;
    const height = about.columns ? below + 10 : below + reach((from, to) => to > from) + 10;
    const top = this.links[0]?.weight ?? 1;
    const curves = this.links.map((link, at) => {
      const [from, to] = spans[at];
      const picked = !this.chosen.size || this.ofChosen(link);
      const d = about.columns ? strand(from, to, above + 2, lower - 18) : arc(from, to, above, below);
      return { link, d, width: 0.75 + 5 * (link.weight / top), opacity: (picked ? 0.2 + 0.75 * (link.weight / top) : 0.07) };
    });
    const words = [...rows.kept.map((unit, at) => ({ unit, rows: true, name: rows.names[at], x: rows.at.get(unit) ?? 0, y: about.columns ? above - 6 : above + 19 }))];
    if (about.columns) words.push(...columns.kept.map((unit, at) => ({ unit, rows: false, name: columns.names[at], x: columns.at.get(unit) ?? 0, y: lower })));
    return { curves, words, width: Math.max(rows.length, columns.length), height };
  }

  /** Whether a link is one of a chosen word. @param {Link} link */
  ofChosen({ from, to }) {
    return this.chosen.has(this.state?.direction === "read-by" ? to : from);
  }

  /** @param {State} state @param {About} about */
  draw(state, about) {
    const all = this.strongest?.(() => true, MOST_ARCS) ?? [];
    const own = this.chosen.size ? (this.strongest?.((link) => this.ofChosen(link), ARCS_OF_CHOSEN) ?? []) : [];
    const known = new Set(all.map(({ from, to }) => `${from} ${to}`));
    this.links = [...all, ...own.filter(({ from, to }) => !known.has(`${from} ${to}`))];
    const plan = this.plan();
    if (!plan) return;
    const made = (/** @type {string} */ tag, /** @type {Record<string, string | number>} */ attributes) => {
      const element = document.createElementNS(NS, tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
      return element;
    };
    const svg = made("svg", { width: plan.width, height: plan.height, role: "group" });
    for (const { link, d, width, opacity } of [...plan.curves].reverse()) {
      const path = made("path", { d, fill: "none", stroke: "currentColor", "stroke-width": width.toFixed(2), opacity: opacity.toFixed(3), "stroke-linecap": "round", class: "arc" });
      const title = made("title", {});
      const to = nameOf(about.columns ?? about.rows, state.unit, link.to);
      title.textContent = `${nameOf(about.rows, state.unit, link.from)} reads ${to} ${shown(link.weight, about.decimals)}`;
      path.append(title);
      svg.append(path);
    }
    for (const { unit, rows, name, x, y } of plan.words) {
      const text = made("text", { x: x.toFixed(1), y, "text-anchor": "middle", class: rows && this.chosen.has(unit) ? "chosen" : "" });
      text.textContent = name;
      if (rows) text.addEventListener("click", () => this.choose(unit));
      svg.append(text);
    }
    this.frame.replaceChildren(svg);
    this.note.textContent = `The strongest ${plan.curves.length} links; width and depth grow with the weight, ${shown(this.links[0]?.weight ?? 0, about.decimals)} at most. ${about.columns ? "" : "Above the line a word reads to its left, below to its right."}`;
  }
}
