// Labels on the page, numbers as they are said, and places in a text.

import { brief } from "./tint.js";

/** A label, visible as it is, kept apart from the direction of the sentence around it. @param {string} text */
export function isolated(text) {
  const element = document.createElement("bdi");
  element.textContent = text;
  return element;
}

/**
 * At most `most` characters as a reader counts them, the rest as an ellipsis.
 * @param {string} text
 * @param {number} most
 * @returns {string}
 */
export function shortened(text, most) {
  if (text.length <= most) return text;
  const parts = [...new Intl.Segmenter().segment(text)].map((part) => part.segment);
  return parts.length <= most ? text : `${parts.slice(0, most - 1).join("")}…`;
}

/**
 * From offsets in code points, as Python counts, to offsets in a string as JavaScript counts.
 * @param {string} text
 * @returns {(offset: number) => number}
 */
export function codeUnits(text) {
  if (!/[\ud800-\udbff]/.test(text)) return (offset) => offset;
  const at = new Uint32Array(text.length + 1);
  let points = 0;
  let units = 0;
  for (const char of text) {
    at[points++] = units;
    units += char.length;
  }
  at.fill(units, points);
  return (offset) => at[Math.min(offset, points)];
}

/**
 * A weight with the digits that are known of it; an exact one with four decimals, or three digits where it is small.
 * @param {number} weight @param {number | null} [decimals]
 */
export function shown(weight, decimals = null) {
  if (Number.isNaN(weight)) return "hidden";
  if (decimals !== null) return weight.toFixed(decimals);
  return weight > 0 && weight < 0.001 ? brief(weight) : weight.toFixed(4);
}

/** @param {number} part @returns {string} a share in percent, never "0 %" for what is not 0 */
export function percent(part) {
  const value = 100 * part;
  return value > 0 && value < 0.5 ? "under 1 %" : `${value.toFixed(0)} %`;
}
