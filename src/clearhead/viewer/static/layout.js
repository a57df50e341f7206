// A text cut into the units that can be pointed at, and into chunks that are drawn as they come near.

import { codeUnits } from "./labels.js";
import { tokensOf } from "./units.js";

/** @typedef {import("./source.js").Axis} Axis */
/** @typedef {import("./source.js").Unit} Unit */

/** A unit where it stands in the text, in code units. @typedef {{unit: number, start: number, end: number}} Span */

/**
 * A part of the text: its spans are `spans.slice(first, last)`; `line` if it ends a line.
 * @typedef {{start: number, end: number, first: number, last: number, line: boolean}} Chunk
 */

const CHUNK = 1500; // characters; about a screen

/** @type {WeakMap<Axis, (offset: number) => number>} */
const places = new WeakMap();

/** From code points to code units in the text of an axis. @param {Axis} axis */
function placeIn(axis) {
  let place = places.get(axis);
  if (!place) places.set(axis, (place = codeUnits(axis.text)));
  return place;
}

/**
 * What a unit says, uncut: the user's own characters, or the name of a special token.
 * @param {Axis} axis @param {Unit} unit @param {number} at @returns {string}
 */
export function textOf(axis, unit, at) {
  if (unit === "tokens" || unit === "words") return axis[unit][at]?.[0] ?? "";
  const span = axis[unit][at];
  if (!span) return "";
  const tokens = axis.tokens.slice(span[0], span[1]).filter((token) => !token[5]);
  if (!tokens.length) return axis.tokens[span[0]]?.[0] ?? "";
  const place = placeIn(axis);
  return axis.text.slice(place(tokens[0][2]), place(tokens[tokens.length - 1][3]));
}

/** @param {Axis} axis @param {Unit} unit @param {number} at @returns {boolean} */
export function isSpecial(axis, unit, at) {
  if (unit === "tokens") return axis.tokens[at]?.[5] ?? false;
  if (unit === "words") return axis.words[at]?.[4] ?? false;
  const span = axis[unit][at];
  return span ? axis.tokens.slice(span[0], span[1]).every((token) => token[5]) : false;
}

/**
 * The units that stand in the text, in its order, none over another.
 * @param {Axis} axis @param {Unit} unit @returns {Span[]}
 */
export function spansOf(axis, unit) {
  const place = placeIn(axis);
  /** @type {Span[]} */
  const spans = [];
  for (let at = 0; at < axis[unit].length; at++) {
    if (unit === "tokens") {
      const token = axis.tokens[at];
      if (!token[5]) spans.push({ unit: at, start: place(token[2]), end: place(token[3]) });
    } else if (unit === "words") {
      const word = axis.words[at];
      if (!word[4]) spans.push({ unit: at, start: place(word[1]), end: place(word[2]) });
    } else {
      const [begin, end] = axis[unit][at];
      const tokens = axis.tokens.slice(begin, end).filter((token) => !token[5]);
      if (tokens.length) spans.push({ unit: at, start: place(tokens[0][2]), end: place(tokens[tokens.length - 1][3]) });
    }
  }
  spans.sort((a, b) => a.start - b.start || a.unit - b.unit);
  let reached = 0;
  return spans.flatMap(({ unit: at, start, end }) => {
    const begin = Math.max(start, reached);
    if (end <= begin) return []; // a piece of a character whose first piece has it all
    reached = end;
    return [{ unit: at, start: begin, end }];
  });
}

/**
 * The whole text in chunks of about a screen, cut at ends of lines where there are some and never
 * within a span.
 * @param {string} text @param {Span[]} spans @returns {Chunk[]}
 */
export function chunksOf(text, spans, size = CHUNK) {
  /** @type {Chunk[]} */
  const chunks = [];
  let first = 0;
  for (let start = 0; start < text.length; ) {
    const [end, line] = endOf(text, start, size);
    let last = first;
    while (last < spans.length && spans[last].end <= end) last++;
    let cut = end;
    if (last < spans.length && spans[last].start < end) {
      // a span stands across the cut: keep it whole, on one side or the other
      if (spans[last].start > start) cut = spans[last].start;
      else cut = spans[last++].end;
    }
    chunks.push({ start, end: cut, first, last, line: line && cut === end });
    first = last;
    start = cut;
  }
  return chunks;
}

/** @param {string} text @param {number} start @param {number} size @returns {[end: number, line: boolean]} */
function endOf(text, start, size) {
  const far = start + size;
  if (far >= text.length) return [text.length, text.endsWith("\n")];
  const line = text.lastIndexOf("\n", far - 1);
  if (line >= start) return [line + 1, true];
  const space = text.lastIndexOf(" ", far - 1);
  if (space > start) return [space + 1, false];
  return [/[\udc00-\udfff]/.test(text[far]) ? far + 1 : far, false];
}

/**
 * Where a search finds what is sought, in any case: the units that hold the hits, in order.
 * @param {string} text @param {Span[]} spans @param {string} sought @returns {number[][]}  units of each hit
 */
export function hitsOf(text, spans, sought) {
  if (!sought.trim()) return [];
  const pattern = new RegExp(sought.trim().replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&"), "gi");
  /** @type {number[][]} */
  const hits = [];
  let from = 0;
  for (const found of text.matchAll(pattern)) {
    const end = found.index + found[0].length;
    while (from < spans.length && spans[from].end <= found.index) from++;
    const units = [];
    for (let at = from; at < spans.length && spans[at].start < end; at++) units.push(spans[at].unit);
    if (units.length) hits.push(units);
  }
  return hits;
}

/**
 * Chosen units as groups: those side by side are one, read together.
 * @param {number[]} chosen @returns {number[][]}
 */
export function groupsOf(chosen) {
  /** @type {number[][]} */
  const groups = [];
  for (const at of [...new Set(chosen)].sort((a, b) => a - b)) {
    const last = groups[groups.length - 1];
    if (last && last[last.length - 1] === at - 1) last.push(at);
    else groups.push([at]);
  }
  return groups;
}

/**
 * The choice after a click: alone, with ctrl one more or one less, with shift all from the last one.
 * @param {number[]} chosen @param {number} at @param {{more: boolean, range: boolean}} how @returns {number[]}
 */
export function chosenAfter(chosen, at, { more, range }) {
  if (range && chosen.length) {
    const anchor = chosen[chosen.length - 1];
    const [low, high] = [Math.min(anchor, at), Math.max(anchor, at)];
    const span = Array.from({ length: high - low + 1 }, (_, i) => low + i).filter((unit) => unit !== anchor);
    const kept = more ? chosen.filter((unit) => unit !== anchor && !span.includes(unit)) : [];
    return [...kept, ...span, anchor];
  }
  if (!more) return [at];
  return chosen.includes(at) && chosen.length > 1 ? chosen.filter((unit) => unit !== at) : [...chosen.filter((unit) => unit !== at), at];
}

/**
 * The unit that a token belongs to.
 * @param {Axis} axis @param {Unit} unit @param {number} token @returns {number}
 */
function unitWith(axis, unit, token) {
  if (unit === "tokens") return token;
  if (unit === "words") return axis.tokens[token]?.[4] ?? 0;
  return Math.max(0, axis[unit].findIndex(([begin, end]) => begin <= token && token < end));
}

/**
 * What is chosen, in other units: each by its first token. What has no such place is let go.
 * @param {import("./source.js").About} about @param {import("./state.js").State} state @param {Unit} unit
 * @returns {Partial<import("./state.js").State>}
 */
export function inUnits(about, state, unit) {
  const [rows, columns] = [about.rows, about.columns ?? about.rows];
  const moved = (/** @type {Axis} */ axis, /** @type {number} */ at) => unitWith(axis, unit, tokensOf(axis, state.unit, at)[0]);
  const asked = state.direction === "reads" || state.direction === "made-of" ? rows : columns;
  const words = state.words.filter((at) => at < asked[state.unit].length).map((at) => moved(asked, at));
  return {
    unit,
    words: [...new Set(words)],
    row: state.row === null || state.row >= rows[state.unit].length ? null : moved(rows, state.row),
    column: state.column === null || state.column >= columns[state.unit].length ? null : moved(columns, state.column),
    span: null,
    camera: null,
    leave: { ...state.leave, columns: [] },
  };
}
