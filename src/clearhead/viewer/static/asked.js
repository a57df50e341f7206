// What the map asks besides its tiles: profiles of rows and columns, what was left out, a part's weight.

import { isCancelled, Refused } from "./source.js";

const REST = 70; // ms that the pointer rests on a row before its profile is asked for
const KEPT = 12; // profiles
const MOST_CELLS = 2 ** 20; // of a window

/** @typedef {import("./state.js").State} State */
/** @typedef {{profile: Float32Array, which: Float32Array | null}} Profile */
/** @typedef {{mean: number, most: number, row_of_most: number}} Mass */

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
    /** @type {Mass | string | null} */
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
   * The weight of a part, exact: by the source where it can, else from the cells.
   * @param {[number, number, number, number]} span
   */
  async askMass([a, b, c, d]) {
    const { signal } = (this.spanEnding = new AbortController());
    const part = { rows: [a, b], columns: [c, d] };
    try {
      this.mass = (await this.ask("mass", part, signal)).json;
    } catch (error) {
      if (signal.aborted || isCancelled(error)) return;
      if (!(error instanceof Refused)) return this.failed(error);
      if ((b - a) * (d - c) > MOST_CELLS) this.mass = `Its weight is not known here: ${error.message}`;
      else {
        try {
          this.mass = massOf((await this.ask("window", part, signal)).arrays[0], d - c, a);
        } catch (failed) {
          if (!signal.aborted) this.failed(failed);
          return;
        }
      }
    }
    if (!signal.aborted) this.answered();
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

/**
 * Of a window of cells: the sum of each row, its mean over rows that see anything, and the largest.
 * @param {Float32Array} cells
 * @param {number} width
 * @param {number} first  the row of the first
 * @returns {Mass}
 */
export function massOf(cells, width, first) {
  let [sum, rows, most, where] = [0, 0, -1, first];
  for (let at = 0; at < cells.length; at += width) {
    let row = 0;
    let sees = false;
    for (const weight of cells.subarray(at, at + width)) {
      if (Number.isNaN(weight)) continue;
      row += weight;
      sees = true;
    }
    if (!sees) continue;
    sum += row;
    rows++;
    if (row > most) [most, where] = [row, first + at / width];
  }
  return { mean: rows ? sum / rows : 0, most: Math.max(0, most), row_of_most: where };
}
