// The tokens, words, sentences and documents along one side of a map, and what each is called.

/** @typedef {import("./source.js").Axis} Axis */
/** @typedef {import("./source.js").Unit} Unit */

const OPENING_WORDS = 6; // of a sentence, that stand for it

const SIGNS = new Map([["\n", "⏎"], ["\r", "⏎"], ["\t", "⇥"]]);
const UNSEEN = /[\p{Cc}\p{Cs}\u202a-\u202e\u2066-\u2069\u2028\u2029\ufffe\uffff]/gu; // controls, half characters, and what turns the text around it

/**
 * A text as a label: what cannot be seen gets a sign, and nothing in it acts on the screen.
 * Spaces at the ends go, since a token often begins with one; a text of spaces alone shows them.
 * @param {string} text
 */
export function visible(text) {
  const inner = /^ +$/.test(text) ? "␣".repeat(text.length) : text.replace(/^ +| +$/g, "");
  return inner.replace(UNSEEN, (char) => {
    const code = /** @type {number} */ (char.codePointAt(0));
    return SIGNS.get(char) ?? (code < 32 ? String.fromCodePoint(0x2400 + code) : `U+${code.toString(16).toUpperCase().padStart(4, "0")}`);
  });
}

/**
 * How many there are.
 * @param {Axis} axis
 * @param {Unit} unit
 */
export const count = (axis, unit) => axis[unit].length;

/**
 * The tokens of one: the first, and one past the last.
 * @param {Axis} axis
 * @param {Unit} unit
 * @param {number} at
 * @returns {[number, number]}
 */
export function tokensOf(axis, unit, at) {
  if (unit === "tokens") return [at, at + 1];
  if (unit !== "words") return axis[unit][at];
  const tokens = axis.words[at][3];
  return tokens.length ? [tokens[0], tokens[tokens.length - 1] + 1] : [0, 0];
}

/**
 * What one is called. Of several tokens that are bytes of one character, each says which it is.
 * @param {Axis} axis
 * @param {Unit} unit
 * @param {number} at
 * @returns {string}
 */
export function nameOf(axis, unit, at) {
  if (unit === "tokens") {
    const text = visible(axis.tokens[at][0]);
    const part = partOf(axis, at);
    return part ? `${text} ·${part}` : text || "∅";
  }
  if (unit === "words") return visible(axis.words[at][0]) || "∅";
  const [first, end] = axis[unit][at];
  let opening = "";
  let words = 0;
  for (let token = first, last = -1; token < end && words < OPENING_WORDS; token++) {
    const word = axis.tokens[token][4];
    if (word === last || axis.tokens[token][5]) continue;
    const { [0]: text, [1]: start } = axis.words[word];
    const glued = words > 0 && start === axis.words[last]?.[2];
    opening += (words && !glued ? " " : "") + visible(text);
    last = word;
    words++;
  }
  return opening || visible(axis.tokens[first]?.[0] ?? "") || "∅";
}

/**
 * Of a token whose neighbours stand for the same characters: which of them it is, from 1; else 0.
 * @param {Axis} axis
 * @param {number} at
 */
function partOf(axis, at) {
  const same = (/** @type {number} */ other) => {
    const [, , start, end, , special] = axis.tokens[other] ?? [];
    return start === axis.tokens[at][2] && end === axis.tokens[at][3] && !special;
  };
  if (axis.tokens[at][5] || axis.tokens[at][2] === axis.tokens[at][3]) return 0;
  let before = 0;
  while (same(at - before - 1)) before++;
  return before || same(at + 1) ? before + 1 : 0;
}

/**
 * Whether a token goes on with the word of the one before it.
 * @param {Axis} axis
 * @param {number} at
 */
export const continues = (axis, at) => at > 0 && axis.tokens[at][4] === axis.tokens[at - 1][4];
