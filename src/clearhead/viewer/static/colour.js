// Weight to colour: one hue, ever further from the paper, so it reads without colour vision too.

const LIGHT = ["#fdfcf9", "#d9e6fa", "#94b9ef", "#4a82d8", "#2450a8", "#0f2260"];
const DARK = ["#14171c", "#1b2d4d", "#245091", "#3b86dc", "#82bff5", "#e4f3ff"];

/** @param {string} hex @returns {number[]} */
export const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** @param {boolean} dark @returns {number[][]} 256 colours, from nothing to 1 */
function table(dark) {
  const stops = (dark ? DARK : LIGHT).map(channels);
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    return stops[low].map((c, k) => Math.round(c + (stops[low + 1][k] - c) * (at - low)));
  });
}

/** The colours of a light or a dark page: `ramp` from the paper to the strongest weight. */
export class Palette {
  /** @param {boolean} dark */
  constructor(dark) {
    this.dark = dark;
    this.ramp = table(dark);
    this.ink = dark ? "#e9e7e2" : "#1b1b20";
    this.soft = dark ? "#a2a2ac" : "#62626b";
    this.line = dark ? "#2d323b" : "#e3dfd6";
    this.paper = dark ? "#14171c" : "#fdfcf9";
    this.accent = dark ? "#82bff5" : "#2450a8";
    this.mark = dark ? "#ffb454" : "#b3400b"; // what is pinned or chosen: orange, told from blue by everyone
    this.hidden = dark ? ["#1e2127", "#3a3f49"] : ["#f1eee7", "#cfc9bc"]; // ground and lines of the hatch
  }

  /** @param {number} share  0 to 1 @returns {number[]} red, green, blue */
  at(share) {
    return this.ramp[Math.max(0, Math.min(255, Math.round(share * 255)))];
  }
}

/** @param {number[]} rgb */
export const css = (rgb) => `rgb(${rgb.join(" ")})`;

/** Relative luminance, as WCAG defines it. @param {number[]} rgb */
function luminance(rgb) {
  const [r, g, b] = rgb.map((c) => (c <= 10 ? c / 3294 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Black or white, whichever stands out more on `rgb`: one of them always by 4.5 or more. @param {number[]} rgb */
export function ink(rgb) {
  const l = luminance(rgb);
  return (l + 0.05) / 0.05 > 1.05 / (l + 0.05) ? "#000000" : "#ffffff";
}
