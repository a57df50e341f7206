// Less and more than nothing: blue below, orange above, told apart by every eye, the paper between.

import { channels } from "./colour.js";

const LIGHT = { less: ["#fdfcf9", "#94b9ef", "#2450a8"], more: ["#fdfcf9", "#f2b27a", "#9a3c06"] };
const DARK = { less: ["#14171c", "#245091", "#82bff5"], more: ["#14171c", "#8a4413", "#ffb978"] };

/**
 * @param {number} value  -1 to 1
 * @param {boolean} dark
 * @returns {number[]} red, green, blue
 */
export function diverging(value, dark) {
  const stops = (dark ? DARK : LIGHT)[value < 0 ? "less" : "more"].map(channels);
  const place = Math.min(1, Math.abs(value)) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  return stops[low].map((channel, at) => Math.round(channel + (stops[low + 1][at] - channel) * (place - low)));
}
