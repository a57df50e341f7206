// What the map asks besides its tiles: profiles of rows and columns, what was left out, a part's weight.

import { isCancelled } from "./source.js";

const REST = 70; // ms that the pointer rests on a row before its profile is asked for
const KEPT = 12; // profiles
const MOST_CELLS = 2 ** 20; // of a window
const MOST_SUMMED = 2 ** 24; // of a chosen part

/** @typedef {import("./state.js").State} State */
/** @typedef {{profile: Float32Array, which: Float32Array | null}} Profile */

export class Asked {
  /**
   * @param {import("./app.js").App} app
   * @param {() => void} answered
   * @param {(error: unknown) => void} failed  nothing is tried again unseen: `forgetAll` does, when it is wished
   */
  constructor(app, answered, failed) {
    this.app = app;
    this.answered = answered;
    this.failed = failed;
    this.key = "";
    this.run = "";
    /** @type {import("./source.js").Picture | null} */
    this.picture = null;
    /** @type {Map<string, Profile | null>} null: asked */
    this.profiles = new Map();
    /** @type {any} */
    this.removed = null;
    /** @type {Mass["said"] | string | null} of the chosen part; a text: why it is not known */
    this.mass = null;
    this.massOf = "";
    /** @type {AbortController} */
    this.ending = new AbortController();
    this.spanEnding = new AbortController();
    /** @type {AbortController | null} */
    this.hovering = null;
    /** @type {number | null} */
    this.hovered = null;
  }

  /**
   * @param {State} state
   * @param {import("./source.js").Picture} picture
   */
  use(state, picture) {
    const key = JSON.stringify([state.run, picture]);
    if (key !== this.key) {
      this.ending.abort();
      this.spanEnding.abort();
      this.ending = new AbortController();
      this.key = key;
      this.run = state.run;
      this.picture = picture;
      this.profiles.clear();
      this.removed = null;
      this.massOf = "";
      const { leave } = picture;
      if (leave.special || leave.sinks || leave.columns.length) void this.askRemoved();
    }
    const span = String(state.span ?? "");
    if (span === this.massOf) return;
    this.massOf = span;
    this.mass = null;
    this.spanEnding.abort();
    if (state.span) void this.askMass(state.span);
  }

  /** @param {string} question @param {object} args @param {AbortSignal} signal */
  ask(question, args, signal) {
    return this.app.source.ask(this.run, question, { ...this.picture, ...args }, signal);
  }

  async askRemoved() {
    const { signal } = this.ending;
    try {
      const { json } = await this.ask("removed", {}, signal);
      this.removed = json;
      this.answered();
    } catch (error) {
      if (!signal.aborted) this.failed(error);
    }
  }

  /**
   * The weight of a part, exact: from its cells, as many rows at a time as a question may be about.
   * @param {[number, number, number, number]} span
   */
  async askMass([a, b, c, d]) {
    if ((b - a) * (d - c) > MOST_SUMMED) {
      this.mass = `More than ${MOST_SUMMED.toLocaleString("en")} weights: choose a smaller part, or larger units.`;
      return;
    }
    const { signal } = (this.spanEnding = new AbortController());
    const [width, step] = [d - c, Math.max(1, Math.floor(MOST_CELLS / (d - c)))];
    const found = new Mass();
    try {
      for (let row = a; row < b; row += step) {
        const part = { rows: [row, Math.min(b, row + step)], columns: [c, d] };
        found.add((await this.ask("window", part, signal)).arrays[0], width, row);
      }
    } catch (error) {
      if (!signal.aborted) this.failed(error);
      return;
    }
    this.mass = found.said;
    this.answered();
  }

  /** The pointer is on a row: its profile will be wanted if it stays. @param {number | null} row */
  hover(row) {
    if (row === this.hovered) return;
    this.hovered = row;
    clearTimeout(this.resting);
    this.hovering?.abort();
    this.hovering = null;
    if (row === null || this.profiles.get(`row ${row}`)) return;
    this.resting = setTimeout(() => {
      this.hovering = new AbortController();
      void this.fetch("row", row, this.hovering.signal);
    }, REST);
  }

  /** The profile of a row, if it is here. @param {number} row */
  known(row) {
    return this.profiles.get(`row ${row}`)?.profile ?? null;
  }

  /** Which head gave a cell, where several were joined by their largest. @param {number} row @param {number} column @returns {import("./state.js").Head | null} */
  headOf(row, column) {
    const which = this.profiles.get(`row ${row}`)?.which;
    return (which && this.picture?.heads[which[column]]) ?? null;
  }

  /** The pinned row's profile; asked for if it is not here. @param {number | null} row */
  row(row) {
    return row === null ? null : this.wanted("row", row);
  }

  /** @param {number | null} column */
  column(column) {
    return column === null ? null : this.wanted("column", column);
  }

  /** @param {"row" | "column"} question @param {number} index */
  wanted(question, index) {
    const key = `${question} ${index}`;
    const found = this.profiles.get(key);
    if (found === undefined) void this.fetch(question, index, this.ending.signal);
    return found?.profile ?? null;
  }

  /**
   * @param {"row" | "column"} question
   * @param {number} index
   * @param {AbortSignal} signal
   */
  async fetch(question, index, signal) {
    const key = `${question} ${index}`;
    const { profiles } = this;
    const picture = this.key;
    profiles.set(key, null);
    try {
      const { arrays } = await this.ask(question, { index }, signal);
      if (picture !== this.key) return;
      profiles.delete(key);
      profiles.set(key, { profile: arrays[0], which: arrays[1] ?? null });
      this.forget();
      this.answered();
    } catch (error) {
      if (picture !== this.key) return;
      if (signal.aborted || isCancelled(error)) profiles.delete(key);
      else this.failed(error); // and it stays asked
    }
  }

  /** Ask all that is wanted anew. */
  forgetAll() {
    this.key = "";
    this.hovered = null;
  }

  /** Keep the latest, and what is pinned. */
  forget() {
    const { row, column } = this.app.state;
    for (const key of this.profiles.keys()) {
      if (this.profiles.size <= KEPT) return;
      if (key !== `row ${row}` && key !== `column ${column}`) this.profiles.delete(key);
    }
  }
}

/** The sums of rows: their mean over those that see anything, and the largest. */
export class Mass {
  constructor() {
    this.sum = 0;
    this.rows = 0;
    this.most = 0;
    this.where = 0;
  }

  /**
   * Take in a window of cells.
   * @param {Float32Array} cells
   * @param {number} width
   * @param {number} first  its first row
   */
  add(cells, width, first) {
    for (let at = 0; at < cells.length; at += width) {
      const seen = cells.subarray(at, at + width).filter((weight) => !Number.isNaN(weight));
      if (!seen.length) continue;
      const row = seen.reduce((sum, weight) => sum + weight, 0);
      if (row > this.most || !this.rows) [this.most, this.where] = [row, first + at / width];
      this.sum += row;
      this.rows++;
    }
  }

  get said() {
    return { mean: this.rows ? this.sum / this.rows : 0, most: this.most, row_of_most: this.where };
  }
}
