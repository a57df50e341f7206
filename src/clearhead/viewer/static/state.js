// What is looked at, as one plain object, and the same as the part of a link after #.

/** @typedef {[layer: number, head: number]} Head  indices, from 0 */

/**
 * @typedef {object} State
 * @property {string} run
 * @property {View} view
 * @property {Head[]} heads
 * @property {"mean" | "max"} join  how several heads become one picture
 * @property {import("./source.js").Unit} unit
 * @property {"mean" | "max"} pool  what stands for the many weights under a pixel
 * @property {"linear" | "root" | "log"} scale
 * @property {import("./source.js").Leave} leave
 * @property {Place | null} camera  null: the whole map
 * @property {number | null} row  pinned
 * @property {number | null} column  pinned
 * @property {[number, number, number, number] | null} span  chosen: first row, one past the last, the same for columns
 * @property {number[]} words  chosen in the text view
 * @property {"reads" | "read-by" | "made-of" | "became"} direction  the last two through all layers, by rollout
 * @property {{special: boolean, self: boolean}} listed  whether lists name special tokens, and what a word reads of itself
 * @property {"off" | "on"} arcs  between the words of a short text
 * @property {{run: string, heads: Head[]} | null} other  compared with
 * @property {string} sort  of the head view
 * @property {"auto" | "light" | "dark"} theme
 */

/** @typedef {"start" | "text" | "map" | "heads" | "steps" | "compare"} View */

/** The unit in the middle of the picture, and how many pixels wide a unit is. @typedef {{x: number, y: number, zoom: number}} Place */

/** @type {State} */
export const INITIAL = {
  run: "",
  view: "text",
  heads: [[0, 0]],
  join: "mean",
  unit: "tokens",
  pool: "mean",
  scale: "root",
  leave: { special: false, sinks: false, columns: [] },
  camera: null,
  row: null,
  column: null,
  span: null,
  words: [],
  direction: "reads",
  listed: { special: false, self: false },
  arcs: "off",
  other: null,
  sort: "",
  theme: "auto",
};

const ONE_OF = {
  view: ["start", "text", "map", "heads", "steps", "compare"],
  join: ["mean", "max"],
  unit: ["tokens", "words", "sentences", "documents"],
  pool: ["mean", "max"],
  scale: ["linear", "root", "log"],
  direction: ["reads", "read-by", "made-of", "became"],
  arcs: ["off", "on"],
  theme: ["auto", "light", "dark"],
};

/** @param {Head[]} heads */
const headsText = (heads) => heads.map((head) => head.join(".")).join(",");

/** @param {string} text @returns {Head[] | null} */
function headsOf(text) {
  const heads = text.split(",").map((part) => /^(\d+)\.(\d+)$/.exec(part));
  return heads.every((match) => match !== null) ? heads.map((match) => [Number(match[1]), Number(match[2])]) : null;
}

/** @param {string} text @returns {number[] | null} */
function countsOf(text) {
  const counts = text.split(",");
  return counts.every((part) => /^\d+$/.test(part)) ? counts.map(Number) : null;
}

/** @param {number} value  as few digits as place it to a thousandth of itself */
const brief = (value) => String(Number(value.toPrecision(9)));

/** How each part that is not one word of a few is written and read back. null: cannot be read. @type {Record<string, [(s: State) => string, (text: string) => any]>} */
const WRITTEN = {
  run: [(s) => s.run, (text) => text],
  heads: [(s) => headsText(s.heads), headsOf],
  leave: [
    ({ leave }) => [leave.special ? "special" : "", leave.sinks ? "sinks" : "", ...leave.columns].filter((part) => part !== "").join(","),
    (text) => {
      const parts = text.split(",").filter(Boolean);
      const columns = parts.filter((part) => part !== "special" && part !== "sinks");
      if (!columns.every((part) => /^\d+$/.test(part))) return null;
      return { special: parts.includes("special"), sinks: parts.includes("sinks"), columns: columns.map(Number) };
    },
  ],
  listed: [
    ({ listed }) => [listed.special ? "special" : "", listed.self ? "self" : ""].filter(Boolean).join(","),
    (text) => {
      const parts = text.split(",").filter(Boolean);
      if (!parts.every((part) => part === "special" || part === "self")) return null;
      return { special: parts.includes("special"), self: parts.includes("self") };
    },
  ],
  camera: [
    ({ camera }) => (camera ? [camera.x, camera.y, camera.zoom].map(brief).join(",") : ""),
    (text) => {
      const [x, y, zoom, ...more] = text.split(",").map((part) => (part === "" ? NaN : Number(part)));
      return Number.isFinite(x) && Number.isFinite(y) && zoom > 0 && zoom < Infinity && !more.length ? { x, y, zoom } : null;
    },
  ],
  row: [(s) => String(s.row ?? ""), (text) => countsOf(text)?.[0] ?? null],
  column: [(s) => String(s.column ?? ""), (text) => countsOf(text)?.[0] ?? null],
  span: [
    (s) => (s.span ?? []).join(","),
    (text) => {
      const span = countsOf(text);
      return span?.length === 4 && span[0] < span[1] && span[2] < span[3] ? span : null;
    },
  ],
  words: [(s) => s.words.join(","), countsOf],
  other: [
    ({ other }) => (other ? `${other.run}:${headsText(other.heads)}` : ""),
    (text) => {
      const cut = text.lastIndexOf(":");
      const heads = headsOf(text.slice(cut + 1));
      return cut > 0 && heads ? { run: text.slice(0, cut), heads } : null;
    },
  ],
  sort: [(s) => s.sort, (text) => text],
};

/**
 * The part of a link after #: what differs from `base`, in a fixed order.
 * @param {State} state
 * @param {State} [base]
 */
export function toHash(state, base = INITIAL) {
  const parts = new URLSearchParams();
  for (const key of /** @type {(keyof State)[]} */ (Object.keys(INITIAL))) {
    const write = WRITTEN[key]?.[0] ?? ((/** @type {State} */ s) => String(s[key]));
    if (write(state) !== write(base)) parts.set(key, write(state));
  }
  return parts.toString().replaceAll("%2C", ",").replaceAll("%3A", ":");
}

/**
 * The state that a link asks for; what cannot be read stays as in `base`, and `wrong` says so.
 * @param {string} hash  with or without its #
 * @param {State} [base]
 * @returns {{state: State, wrong: string[]}}
 */
export function fromHash(hash, base = INITIAL) {
  /** @type {Record<string, any>} */
  const state = { ...base };
  const wrong = [];
  for (const [key, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    const choices = Object.hasOwn(ONE_OF, key) ? ONE_OF[/** @type {keyof typeof ONE_OF} */ (key)] : null;
    const read = Object.hasOwn(WRITTEN, key) ? WRITTEN[key][1] : null;
    if (choices) {
      if (choices.includes(text)) state[key] = text;
      else wrong.push(`${key}: is ${text}, must be ${choices.join(" or ")}`);
    } else if (read) {
      const empty = /** @type {any} */ ({ leave: INITIAL.leave, listed: INITIAL.listed, words: [], run: "", sort: "" })[key] ?? null;
      const value = text === "" && key !== "heads" ? empty : read(text);
      if (value === null && text !== "") wrong.push(`${key}: is ${text}, which cannot be read`);
      else state[key] = value;
    } else wrong.push(`${key}: is no part of a link`);
  }
  return { state: /** @type {State} */ (state), wrong };
}

/** The state that all views share: read it, change it, hear of changes. */
export class Store {
  /** @param {State} state */
  constructor(state) {
    this.state = state;
    /** @type {Set<(state: State, before: State) => void>} */
    this.listeners = new Set();
  }

  /** @param {Partial<State>} change */
  set(change) {
    const before = this.state;
    this.state = { ...before, ...change };
    for (const listen of [...this.listeners]) listen(this.state, before);
  }

  /**
   * Call `listen` after each change; the function that is given back ends that.
   * @param {(state: State, before: State) => void} listen
   */
  subscribe(listen) {
    this.listeners.add(listen);
    return () => void this.listeners.delete(listen);
  }
}
