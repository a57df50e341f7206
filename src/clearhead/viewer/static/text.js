// The text view: point at a word to see, over the text itself, what it reads or who reads it.

import { ArcsView } from "./arcs.js";
import { css, ink } from "./colour.js";
import { UnitSwitch } from "./controls.js";
import { make } from "./dom.js";
import { shown } from "./labels.js";
import { chosenAfter, isSpecial, textOf } from "./layout.js";
import { TextPane } from "./pane.js";
import { HeadPicker } from "./picker.js";
import { ReadingPanel, axisOf, groupName } from "./panel.js";
import { VERBS, brief, isForward, isRollout, meanOf, pictureOf, readGroups, strongest, topOf } from "./reading.js";
import { Search } from "./search.js";
import { isCancelled } from "./source.js";
import { Scale } from "./tint.js";
import { count } from "./units.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./state.js").State} State */
/** @typedef {import("./source.js").About} About */
/** @typedef {import("./reading.js").Read} Read */

const NUMBERED = 8; // words with their number under them
const FAINTEST = 0.02; // of the strongest, that is still painted
const DEEPEST = 1e-4; // of the strongest, where a logarithmic scale begins
const REST = 30; // ms that a pointer rests before its word is asked about

export class TextView {
  /** @param {HTMLElement} root @param {App} app */
  constructor(root, app) {
    this.app = app;
    /** @type {About | null} */
    this.about = null;
    this.key = "";
    /** @type {{unit: number, rows: boolean} | null} what the pointer is on */
    this.pointed = null;
    /** @type {Read[]} */
    this.reads = [];
    this.drawn = app.state;
    this.asking = new AbortController();
    this.hint = make("p", "fine hint");
    const text = (/** @type {string} */ label) => make("div", "prose", { role: "group", dir: "auto", "aria-label": `${label}. Arrow keys go from word to word.` });
    this.texts = [text("The text"), text("The text that is read")];
    this.titles = [make("h3", "side", {}, "What reads"), make("h3", "side", {}, "What is read")];
    this.panes = this.texts.map((element, at) => this.pane(element, at === 0));
    this.search = new Search(this.panes, (unit, pane) => this.choose(unit, { more: false, range: false }, pane === this.panes[0]));
    this.heads = new HeadPicker(app);
    this.arcs = new ArcsView(app, (unit) => this.choose(unit, { more: false, range: false }, true));
    this.panel = new ReadingPanel(app, (unit) => this.painted().reach(unit));
    this.unit = new UnitSwitch(app);
    const bar = make("div", "bar controls", {}, this.search.root, this.heads.root, this.unit.root);
    root.append(make("div", "column", {}, bar, this.hint, this.titles[0], this.texts[0], this.titles[1], this.texts[1], this.arcs.root), this.panel.root);
  }

  /** @param {HTMLElement} element @param {boolean} rows */
  pane(element, rows) {
    return new TextPane(element, {
      point: (unit) => this.point(unit, rows),
      choose: (unit, how) => this.choose(unit, how, rows),
    });
  }

  /** @param {State} state */
  show(state) {
    void this.update(state).catch((error) => this.app.say(error, () => this.show(this.app.state)));
  }

  hide() {
    this.asking.abort();
    this.arcs.stop();
    this.pointed = null;
  }

  /** @param {State} state */
  async update(state) {
    const about = await this.app.about(state.run);
    if (state !== this.app.state) return;
    this.about = about;
    const key = `${state.run} ${state.unit}`;
    if (key !== this.key) {
      this.key = key;
      this.pointed = null;
      this.panes[0].show(about.rows, state.unit);
      for (const element of [...this.titles, this.texts[1]]) element.hidden = !about.columns;
      if (about.columns) this.panes[1].show(about.columns, state.unit);
      this.search.again();
    }
    this.heads.update(about, state);
    this.unit.update(about, state);
    this.arcs.show(state, about);
    await this.read(state);
  }

  /** @param {number | null} unit @param {boolean} rows */
  point(unit, rows) {
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      this.pointed = unit === null ? null : { unit, rows };
      void this.read(this.app.state).catch((error) => this.app.say(error));
    }, REST);
  }

  /** @param {number} unit @param {{more: boolean, range: boolean}} how @param {boolean} rows */
  choose(unit, how, rows) {
    clearTimeout(this.resting);
    this.pointed = null;
    const { state } = this.app;
    const direction = this.direction(state, rows);
    const words = direction === state.direction ? state.words : [];
    this.app.set({ words: chosenAfter(words, unit, how), direction, row: null, column: null });
  }

  /** Where rows and columns are two texts, a word of each is asked in its own direction. @param {State} state @param {boolean} rows */
  direction(state, rows) {
    if (!this.about?.columns || rows === isForward(state.direction)) return state.direction;
    return rows ? "reads" : "read-by";
  }

  /** Ask for what the pointed or the chosen units read, and show it. @param {State} now */
  async read(now) {
    const { about, pointed } = this;
    if (!about) return;
    const state = pointed ? { ...now, direction: this.direction(now, pointed.rows) } : now;
    const most = count(axisOf(about, state, true), state.unit);
    const units = (pointed ? [pointed.unit] : state.words).filter((unit) => unit < most);
    this.asking.abort();
    this.asking = new AbortController();
    const { signal } = this.asking;
    if (!units.length) return this.draw(about, state, [], null);
    try {
      const [reads, own] = await Promise.all([readGroups(this.app.source, state, units, signal), this.spent(state, units, signal)]);
      this.draw(about, state, reads, own);
    } catch (error) {
      if (!isCancelled(error)) throw error;
    }
  }

  /** The row of the one chosen unit, averaged over the heads. @param {State} state @param {number[]} units @param {AbortSignal} signal */
  async spent(state, units, signal) {
    const ofColumn = this.about?.columns && !isForward(state.direction);
    if (isRollout(state.direction) || ofColumn || units.length > 1) return null;
    const picture = { ...pictureOf(state), join: /** @type {"mean" | "max"} */ ("mean") };
    return (await this.app.source.ask(state.run, "row", { ...picture, index: units[0] }, signal)).arrays[0];
  }

  /** The pane that is painted: of the other text, where there are two. */
  painted() {
    return this.about?.columns && isForward(this.drawn.direction) ? this.panes[1] : this.panes[0];
  }

  /** Whether a unit of the axis that is painted is in the list. @param {About} about @param {State} state @param {number[]} chosen */
  lister(about, state, chosen) {
    const axis = axisOf(about, state, false);
    const itself = new Set(about.columns || state.listed.self ? [] : chosen);
    return (/** @type {number} */ unit) => !itself.has(unit) && (state.listed.special || !isSpecial(axis, state.unit, unit));
  }

  /** @param {About} about @param {State} state @param {Read[]} reads @param {Float32Array | null} own */
  draw(about, state, reads, own) {
    this.reads = reads;
    this.drawn = state;
    const chosen = reads.flatMap(({ units }) => units);
    const listed = this.lister(about, state, chosen);
    const weights = reads.length ? meanOf(reads) : new Float32Array(0);
    const top = topOf(weights, listed);
    const numbered = new Set(strongest([weights], listed, NUMBERED));
    const scale = new Scale(state.scale === "log" ? "log" : "linear", top, DEEPEST * top);
    const whose = reads.length === 1 ? groupName(axisOf(about, state, true), state, reads[0].units) : "the chosen words";
    const verb = VERBS[state.direction][0];
    const look = (/** @type {number} */ unit) => {
      const weight = weights[unit];
      if (!(weight > FAINTEST * top) || !listed(unit)) return null;
      const rgb = this.app.palette.at(scale.share(weight));
      const said = `${whose} ${verb} it ${shown(weight, about.decimals)}`;
      return { fill: css(rgb), ink: ink(rgb), note: numbered.has(unit) ? brief(weight) : "", said };
    };
    const painted = this.painted();
    for (const pane of this.panes.slice(0, about.columns ? 2 : 1)) {
      const asks = !about.columns || pane !== painted;
      pane.paint(pane === painted ? look : () => null, asks ? chosen : []);
    }
    this.panel.draw({ state, about, reads, listed, scale, own, passing: this.pointed !== null });
    this.arcs.mark(chosen);
    const what = state.unit.slice(0, -1);
    this.hint.textContent = state.words.length
      ? `Ctrl and click adds another ${what} to compare; Shift and click takes all up to it, read as one.`
      : `Point at a ${what} to see what it reads; click to keep it.`;
  }

  /** The numbers behind what is seen: the weight of every unit for each group of chosen ones. */
  numbers() {
    const { about, drawn: state } = this;
    if (!about) return { columns: [], rows: [] };
    const [from, to] = [axisOf(about, state, true), axisOf(about, state, false)];
    const heads = state.heads.map(([layer, head]) => `${about.layers[layer]}.${about.heads[head]}`);
    const rows = this.reads.flatMap(({ units, weights, which }) => {
      const texts = units.map((unit) => textOf(from, state.unit, unit)).join(" ");
      return Array.from(weights, (weight, at) => {
        const head = which && !Number.isNaN(which[at]) ? heads[which[at]] : heads.join(" ");
        return [units.join(" "), texts, at, textOf(to, state.unit, at), Number.isNaN(weight) ? null : weight, isRollout(state.direction) ? "" : head];
      });
    });
    const columns = isForward(state.direction) ? ["from", "from_text", "to", "to_text", "weight", "head"] : ["to", "to_text", "from", "from_text", "weight", "head"];
    return { columns, rows };
  }
}
