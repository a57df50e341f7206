// What is under the pointer, in words and numbers.

import { bdi, make } from "./dom.js";
import { number } from "./side.js";
import { brief } from "./tint.js";

/** @typedef {string | HTMLElement} Part */

/** @param {number} count */
const counted = (count) => count.toLocaleString("en");

/** How many of a profile are larger than a weight. @param {Float32Array} profile @param {number} weight */
export const above = (profile, weight) => profile.reduce((larger, other) => larger + Number(other > weight), 0);

/** How many of a profile the mask does not hide. @param {Float32Array} profile */
export const seen = (profile) => profile.reduce((sum, weight) => sum + Number(!Number.isNaN(weight)), 0);

/**
 * One cell: who reads whom, how much, and where that stands among all that the row reads.
 * @param {object} given
 * @param {[number, number]} given.cell
 * @param {string} given.row
 * @param {string} given.column
 * @param {number | undefined} given.weight  undefined: not here yet
 * @param {Float32Array | null} given.profile  of the row, once it is here
 * @param {number | null} given.decimals
 * @param {string | null} given.head  that gave the largest weight, where several were joined so
 * @returns {Part[]}
 */
export function cellParts({ cell, row, column, weight, profile, decimals, head }) {
  /** @type {Part[]} */
  const parts = [bdi(row), " reads ", bdi(column), " "];
  const where = make("span", "where", {}, ` row ${counted(cell[0])}, column ${counted(cell[1])}`);
  if (weight === undefined) return [...parts, "…", where];
  if (Number.isNaN(weight)) return [bdi(row), " cannot see ", bdi(column), ": hidden by the mask", where];
  parts.push(number(weight, decimals));
  if (profile) parts.push(`, number ${counted(1 + above(profile, weight))} of ${counted(seen(profile))} in its row`);
  if (head) parts.push(`, head ${head}`);
  return [...parts, where];
}

/**
 * A pixel that stands for many cells.
 * @param {object} given
 * @param {[number, number]} given.cell
 * @param {number} given.level
 * @param {number} given.rows
 * @param {number} given.columns
 * @param {number | undefined} given.value
 * @param {"mean" | "max"} given.pool
 * @returns {Part[]}
 */
export function blockParts({ cell, level, rows, columns, value, pool }) {
  const side = 2 ** level;
  const ends = (/** @type {number} */ at, /** @type {number} */ most) => {
    const from = Math.floor(at / side) * side;
    return `${counted(from)} to ${counted(Math.min(most, from + side) - 1)}`;
  };
  /** @type {Part[]} */
  const parts = [`Rows ${ends(cell[0], rows)} read columns ${ends(cell[1], columns)}: `];
  if (value === undefined) return [...parts, "…"];
  if (Number.isNaN(value)) return [...parts, "hidden by the mask"];
  return [...parts, pool === "mean" ? "on average " : "at most ", make("strong", "number", {}, brief(value, 4)), " each"];
}

/** What can be done here, while nothing is pointed at. @param {boolean} touch @returns {string} */
export function hint(touch) {
  return touch ? "Rows read columns. Tap a cell for its number." : "Rows read columns. Point at a cell for its number.";
}
