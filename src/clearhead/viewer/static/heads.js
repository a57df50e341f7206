// The head view: layers x heads as small multiples, with what each head does under it.

import { make, Switch } from "./dom.js";
import { shown } from "./labels.js";
import { Legend } from "./legend.js";
import { headsName } from "./picker.js";
import { isCancelled } from "./source.js";
import { count, nameOf } from "./units.js";
import { Thumbs, levelFor } from "./thumbs.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./source.js").About} About */
/** @typedef {import("./state.js").Head} Head */
/** @typedef {import("./state.js").State} State */

/** A number of every head, (L, H), and what it means. @typedef {{name: string, means: string, values: ArrayLike<number>}} Measure */

export const LINK = "this link"; // the measure of the pair that is pinned

/** Every head of a run. @param {About} about @returns {Head[]} */
export const allHeads = ({ layers, heads }) => layers.flatMap((_, layer) => heads.map((_, head) => /** @type {Head} */ ([layer, head])));

/** The choice with one head more or, where it was in, less; never none. @param {Head[]} chosen @param {Head} head @returns {Head[]} */
export function toggled(chosen, head) {
  const others = chosen.filter((other) => String(other) !== String(head));
  return others.length === chosen.length ? [...chosen, head] : others.length ? others : chosen;
}

/**
 * The heads by a measure, largest first, those without a value last; equals by layer and head.
 * @param {Head[]} heads @param {ArrayLike<number>} values @returns {number[]} places in `heads`
 */
export function ranked(heads, values) {
  const worth = (/** @type {number} */ at) => (Number.isNaN(values[at]) ? -Infinity : values[at]);
  return heads.map((_, at) => at).sort((a, b) => worth(b) - worth(a) || a - b);
}

/** The largest value, for bars. @param {ArrayLike<number>} values */
export const largest = (values) => Array.from(values).reduce((top, value) => (value > top ? value : top), 0);

export class HeadsView {
  /** @param {HTMLElement} root @param {App} app */
  constructor(root, app) {
    this.app = app;
    this.key = "";
    this.asking = new AbortController();
    /** @type {Measure[]} */
    this.measures = [];
    /** @type {{button: HTMLButtonElement, canvas: HTMLCanvasElement, head: Head, bar: HTMLElement, number: HTMLElement}[]} */
    this.cells = [];
    this.thumbs = new Thumbs(app, (scale) => this.legend.update(scale, app.palette, this.thumbs.hidden, ""));
    this.adds = false;
    this.sort = make("select", "field", { "aria-label": "Sort heads by" });
    this.sort.addEventListener("change", () => app.set({ sort: this.sort.value }));
    this.click = new Switch("A click", [["opens", "click opens"], ["adds", "click adds"]], (what) => {
      this.adds = what === "adds";
      this.click.update(what);
    });
    this.click.update("opens");
    this.join = new Switch("How several heads become one", [["mean", "average"], ["max", "strongest"]], (join) => app.set({ join }));
    this.chosen = make("span", "fine");
    this.map = this.onward("in the map", () => app.set({ view: "map" }));
    this.two = this.onward("compare the two", () => {
      const [first, second] = app.state.heads;
      app.set({ view: "compare", heads: [first], other: { run: app.state.run, heads: [second] } });
    });
    this.legend = new Legend();
    this.note = make("p", "fine");
    this.grid = make("div", "heads-grid", { role: "group", "aria-label": "Heads. Arrow keys go from head to head, Enter opens one in the map, Ctrl and Enter adds it." });
    this.grid.addEventListener("keydown", (event) => this.go(event));
    const sorting = make("label", "sorting", {}, make("span", "fine", {}, "sort by"), this.sort);
    const bar = make("div", "bar heads-bar", {}, make("div", "bar controls", {}, sorting, this.click.root, this.join.root, this.chosen, this.map, this.two), this.legend.root);
    root.append(bar, this.note, this.grid);
  }

  /** @param {string} word @param {() => void} go */
  onward(word, go) {
    const button = make("button", "chip", { type: "button" }, word);
    button.addEventListener("click", go);
    return button;
  }

  /** @param {State} state */
  show(state) {
    void this.update(state).catch((error) => isCancelled(error) || this.app.say(error, () => this.show(this.app.state)));
  }

  hide() {
    this.asking.abort();
    this.thumbs.stop();
    this.key = "";
  }

  /** @param {State} state */
  async update(state) {
    const about = await this.app.about(state.run);
    if (state !== this.app.state) return;
    const { run, unit, leave, pool, row, column } = state;
    const key = JSON.stringify([run, unit, leave, pool]);
    const link = row === null || column === null ? "" : JSON.stringify([run, unit, leave, row, column]);
    if (run !== this.about?.[0]) await this.measure(run, about);
    if (link !== this.link) await this.strength(state, about, link);
    if (state !== this.app.state) return;
    if (this.built !== this.order(state, about)) this.build(state, about);
    if (key !== this.key) {
      this.key = key;
      const level = levelFor(count(about.rows, unit), count(about.columns ?? about.rows, unit));
      this.thumbs.show(new Map(this.cells.map(({ canvas, head }) => [canvas, head])), state, { level });
    } else this.thumbs.paint();
    this.mark(state, about);
  }

  /** @param {string} run @param {About} about */
  async measure(run, about) {
    this.about = /** @type {const} */ ([run, about]);
    this.measures = [];
    const { json, arrays } = await this.app.source.ask(run, "heads", {});
    this.measures = Object.entries(json.measures).map(([name, means], at) => ({ name, means: String(means), values: arrays[at] }));
  }

  /** How strong the pinned link is in every head. @param {State} state @param {About} about @param {string} link */
  async strength(state, about, link) {
    this.link = link;
    this.measures = this.measures.filter(({ name }) => name !== LINK);
    if (!link) return;
    const { unit, row, column, leave, run } = state;
    const { arrays } = await this.app.source.ask(run, "across", { unit, row, column, leave });
    const from = nameOf(about.rows, unit, row ?? 0);
    const to = nameOf(about.columns ?? about.rows, unit, column ?? 0);
    this.measures.unshift({ name: LINK, means: `how much ${from} reads ${to}`, values: arrays[0] });
  }

  /** What the order of the cells hangs on. @param {State} state @param {About} about */
  order(state, about) {
    const sorted = this.measures.find(({ name }) => name === state.sort);
    return JSON.stringify([state.run, about.layers.length, sorted ? [sorted.name, sorted.name === LINK ? this.link : ""] : ""]);
  }

  /** @param {State} state @param {About} about */
  build(state, about) {
    this.built = this.order(state, about);
    this.key = "";
    const heads = allHeads(about);
    const sorted = this.measures.find(({ name }) => name === state.sort);
    const order = sorted ? ranked(heads, sorted.values) : heads.map((_, at) => at);
    this.grid.classList.toggle("ranked", sorted !== undefined);
    this.cells = order.map((at, place) => this.cell(about, heads[at], place));
    const buttons = this.cells.map(({ button }) => button);
    if (sorted) {
      this.grid.style.gridTemplateColumns = "";
      this.grid.replaceChildren(...buttons);
      return;
    }
    this.grid.style.gridTemplateColumns = `auto repeat(${about.heads.length}, minmax(30px, 84px))`;
    const axis = (/** @type {string | number} */ text) => make("span", "axis", {}, String(text));
    const rows = about.layers.flatMap((number, layer) => [axis(number), ...buttons.slice(layer * about.heads.length, (layer + 1) * about.heads.length)]);
    this.grid.replaceChildren(axis(""), ...about.heads.map(axis), ...rows);
  }

  /** @param {About} about @param {Head} head @param {number} place */
  cell(about, head, place) {
    const canvas = make("canvas", "");
    const [bar, number] = [make("i", ""), make("span", "number")];
    const label = make("span", "where", {}, `${about.layers[head[0]]}.${about.heads[head[1]]}`);
    const button = make("button", "head", { type: "button", tabindex: place ? -1 : 0, "data-head": head.join(".") }, canvas, make("span", "gauge", {}, bar), make("span", "said", {}, label, number));
    button.addEventListener("click", (event) => {
      const { heads } = this.app.state;
      if (this.adds || event.ctrlKey || event.metaKey) this.app.set({ heads: toggled(heads, head) });
      else this.app.set({ heads: [head], view: "map" });
    });
    return { button, canvas, head, bar, number };
  }

  /** Under each head its measure, around the chosen ones a frame. @param {State} state @param {About} about */
  mark(state, about) {
    const measure = this.measures.find(({ name }) => name === state.sort) ?? this.measures[0];
    const values = measure?.values ?? [];
    const top = measure?.name === "distance" || measure?.name === "entropy" ? largest(values) : Math.max(1e-9, Math.min(1, largest(values)) || 0);
    const chosen = new Set(state.heads.map((head) => head.join(".")));
    for (const { button, head, bar, number } of this.cells) {
      const value = values[head[0] * about.heads.length + head[1]];
      const known = value !== undefined && !Number.isNaN(value);
      bar.style.width = known ? `${100 * Math.min(1, value / (top || 1))}%` : "0";
      number.textContent = known ? figure(value) : "–";
      button.setAttribute("aria-pressed", String(chosen.has(head.join("."))));
      const name = `Layer ${about.layers[head[0]]} head ${about.heads[head[1]]}`;
      const said = measure ? `${measure.name} ${known ? shown(value, 4) : "has no value"}` : "";
      button.setAttribute("aria-label", `${name}; ${said}`);
      button.title = `${name}\n${said}`;
    }
    this.sort.replaceChildren(make("option", "", { value: "" }, "layer and head"), ...this.measures.map(({ name }) => make("option", "", { value: name }, name)));
    this.sort.value = this.measures.some(({ name }) => name === state.sort) ? state.sort : "";
    this.join.update(state.join);
    this.join.root.hidden = this.map.hidden = state.heads.length < 2;
    this.two.hidden = state.heads.length !== 2;
    this.chosen.textContent = state.heads.length > 1 ? headsName(about, state) : "";
    this.note.replaceChildren("Rows are layers. ", ...(measure ? ["Under each head: ", make("strong", "", {}, measure.name), `, ${measure.means}. `] : []), "Choose a head to look closer.");
    if (this.sort.value) this.note.firstChild?.replaceWith("Strongest first. ");
  }

  /** @param {KeyboardEvent} event */
  go(event) {
    const at = this.cells.findIndex(({ button }) => button === event.target);
    const across = this.grid.classList.contains("ranked") ? this.across() : (this.about?.[1].heads.length ?? 1);
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
    const next = at >= 0 && step ? this.cells[at + step] : undefined;
    if (!next) return;
    for (const { button } of this.cells) button.tabIndex = button === next.button ? 0 : -1;
    next.button.focus();
    event.preventDefault();
  }

  /** How many ranked heads stand in a row. */
  across() {
    const [first] = this.cells;
    const next = this.cells.findIndex(({ button }) => button.offsetTop > first.button.offsetTop);
    return next < 0 ? this.cells.length : next;
  }

  /** Every head with all its measures, in the order that is seen. */
  numbers() {
    const about = this.about?.[1];
    if (!about) return { columns: [], rows: [] };
    const rows = this.cells.map(({ head: [layer, head] }) => [
      about.layers[layer], about.heads[head],
      ...this.measures.map(({ values }) => {
        const value = values[layer * about.heads.length + head];
        return Number.isNaN(value) ? null : value;
      }),
    ]);
    return { columns: ["layer", "head", ...this.measures.map(({ name }) => name)], rows };
  }
}

/** A measure in three digits. @param {number} value */
const figure = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));
