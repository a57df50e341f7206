// The picture of a map: cells, axes, what is pinned, pointed at and chosen. On a canvas and as SVG.

import { fitted, marksOn } from "./axes.js";
import { css, ink } from "./colour.js";
import { brief } from "./tint.js";

/** @typedef {import("./pens.js").Pen} Pen */
/** @typedef {import("./pens.js").Box} Box */

/**
 * One side of the map: what each unit is called, and whether it goes on with the word before.
 * @typedef {{name: (index: number) => string, joined: (index: number) => boolean, ends: number[]}} Side
 *
 * A part of the picture: pixels of an image, or null where none has come yet.
 * @typedef {{image: HTMLCanvasElement | null, from: Box, to: Box}} Piece
 *
 * @typedef {object} Scene
 * @property {number} width  of the whole picture
 * @property {number} height
 * @property {Box} plot  where the cells are
 * @property {import("./camera.js").Camera} camera  over the plot
 * @property {import("./colour.js").Palette} palette
 * @property {Piece[]} pieces  in the plot's pixels
 * @property {boolean} hidden  whether the mask hides anything here
 * @property {(row: number, column: number) => number | undefined} value  of a cell, where it is known exactly
 * @property {import("./tint.js").Scale} scale
 * @property {Side} rows
 * @property {Side} columns
 * @property {(text: string, size: number) => number} measure
 * @property {[number, number] | null} pointed
 * @property {number | null} row  pinned
 * @property {number | null} column  pinned
 * @property {[number, number, number, number] | null} span
 * @property {Float32Array | null} rowProfile  of the pinned row
 * @property {Float32Array | null} columnProfile
 */

export const STRIP = 72; // pixels of the profile of a pinned row or column
const ROOM = 10.5; // pixels that a label needs
const UPRIGHT = 26; // pixels of a column from which its label leans instead of standing
const NUMBERED = 34; // pixels of a cell that holds its number
const PRECISE = 60; // and one with more digits
const LABEL = 12; // pixels of letters, where there is room
const SMALL = 11;

/** Letters as large as the units let them be. @param {number} zoom */
const lettersAt = (zoom) => (zoom < ROOM ? LABEL : Math.min(LABEL, Math.max(10, zoom - 1)));

/**
 * @param {Pen} pen
 * @param {Scene} scene
 */
export function drawMap(pen, scene) {
  const { plot, camera, palette } = scene;
  const [x, y, w, h] = plot;
  pen.box(0, 0, scene.width, scene.height, palette.paper);
  pen.within(x, y, w, h, () => {
    drawCells(pen, scene);
    if (camera.zoom >= NUMBERED) drawNumbers(pen, scene);
    drawEnds(pen, scene);
    drawChosen(pen, scene);
  });
  pen.within(0, y - 7, x, h + 14, () => drawRowNames(pen, scene));
  pen.within(x - 8, 0, scene.width - x + 8, y, () => drawColumnNames(pen, scene));
  if (scene.row !== null) drawRowProfile(pen, scene);
  if (scene.column !== null) drawColumnProfile(pen, scene);
}

/** Where the matrix is within the plot, cut to it. @param {Scene} scene @returns {Box} */
function matrixBox({ plot: [x, y, w, h], camera }) {
  const left = Math.max(0, camera.left);
  const top = Math.max(0, camera.top);
  const right = Math.min(w, camera.left + camera.columns * camera.zoom);
  const bottom = Math.min(h, camera.top + camera.rows * camera.zoom);
  return [x + left, y + top, right - left, bottom - top];
}

/**
 * @param {Pen} pen
 * @param {Scene} scene
 */
function drawCells(pen, scene) {
  const { palette, plot } = scene;
  if (scene.hidden) pen.hatch(...matrixBox(scene));
  for (const { image, from, to } of scene.pieces) {
    const box = /** @type {Box} */ ([plot[0] + to[0], plot[1] + to[1], to[2], to[3]]);
    if (box[2] <= 0 || box[3] <= 0) continue;
    if (image) pen.image(image, from, box);
    else pen.box(...box, palette.hidden[0]); // not known yet: neither nothing nor hidden
  }
  const [x, y, w, h] = matrixBox(scene);
  pen.frame(x - 0.5, y - 0.5, w + 1, h + 1, palette.line, 1);
}

/**
 * @param {Pen} pen
 * @param {Scene} scene
 */
function drawNumbers(pen, { camera, plot, palette, scale, value }) {
  const [a, b, c, d] = camera.bounds;
  const precise = camera.zoom >= PRECISE;
  for (let row = a; row < b; row++) {
    for (let column = c; column < d; column++) {
      const weight = value(row, column);
      if (weight === undefined || Number.isNaN(weight) || (!precise && weight < 0.005)) continue;
      const text = precise ? brief(weight, 3) : weight.toFixed(2).replace(/^0/, "");
      const [x, y] = [plot[0] + camera.left + (column + 0.5) * camera.zoom, plot[1] + camera.top + (row + 0.5) * camera.zoom];
      pen.text(text, x, y + 0.5, { colour: ink(palette.at(scale.share(weight))), size: SMALL, align: "middle" });
    }
  }
}

/** Lines where a document ends. @param {Pen} pen @param {Scene} scene */
function drawEnds(pen, scene) {
  const { camera, plot, palette } = scene;
  const [x, y, w, h] = matrixBox(scene);
  for (const end of scene.rows.ends) {
    const at = Math.round(plot[1] + camera.top + end * camera.zoom);
    if (at > y && at < y + h) pen.box(x, at, w, 1, palette.soft);
  }
  for (const end of scene.columns.ends) {
    const at = Math.round(plot[0] + camera.left + end * camera.zoom);
    if (at > x && at < x + w) pen.box(at, y, 1, h, palette.soft);
  }
}

/**
 * The box of a row, a column or a part: at least 2 pixels wide, so that it is seen at any zoom.
 * @param {Scene} scene
 * @param {[number, number, number, number]} span
 * @returns {Box}
 */
function spanBox({ camera, plot }, [a, b, c, d]) {
  const side = (/** @type {number} */ units) => Math.max(2, units * camera.zoom);
  return [plot[0] + camera.left + c * camera.zoom, plot[1] + camera.top + a * camera.zoom, side(d - c), side(b - a)];
}

/** What is pointed at, pinned and chosen. @param {Pen} pen @param {Scene} scene */
function drawChosen(pen, scene) {
  const { camera, palette, pointed, row, column, span } = scene;
  const band = (/** @type {[number, number, number, number]} */ cells, /** @type {string} */ colour, /** @type {number} */ width) => {
    const [x, y, w, h] = spanBox(scene, cells);
    if (Math.min(w, h) < 4) pen.box(x, y, w === 2 ? width : w, h === 2 ? width : h, colour); // a line is enough
    else pen.frame(x - width / 2, y - width / 2, w + width, h + width, colour, width);
  };
  if (pointed) {
    const faint = `${palette.soft}90`;
    band([pointed[0], pointed[0] + 1, 0, camera.columns], faint, 1);
    band([0, camera.rows, pointed[1], pointed[1] + 1], faint, 1);
    if (camera.zoom >= 4) band([pointed[0], pointed[0] + 1, pointed[1], pointed[1] + 1], palette.ink, 1.5);
  }
  if (row !== null) band([row, row + 1, 0, camera.columns], palette.mark, 1.5);
  if (column !== null) band([0, camera.rows, column, column + 1], palette.mark, 1.5);
  if (span) {
    const box = spanBox(scene, span);
    pen.box(...box, `${palette.mark}24`);
    pen.frame(...box, palette.mark, 1.5);
  }
}

/** Those of a few units that are seen. @param {(number | null | undefined)[]} units @param {number} first @param {number} end */
function chosenIn(units, first, end) {
  /** @type {Set<number>} */
  const seen = new Set();
  for (const at of units) if (typeof at === "number" && at >= first && at < end) seen.add(at);
  return seen;
}

/**
 * The labels whose middle is seen and that are not in the way of those that stand out.
 * @param {import("./axes.js").Mark[]} marks
 * @param {Set<number>} special
 * @param {number} zoom
 * @param {number} size  of the plot, along the axis
 * @param {number} apart  pixels
 */
const clearOf = (marks, special, zoom, size, apart) =>
  marks.filter(({ index, at }) => at >= 0 && at <= size && [...special].every((other) => Math.abs(other - index) * zoom >= apart));

/** What is said at the left of each row that has room. @param {Pen} pen @param {Scene} scene */
function drawRowNames(pen, scene) {
  const { camera, plot, palette, rows, pointed, row } = scene;
  const [first, end] = camera.bounds;
  const { each, marks } = marksOn(first, end, camera.zoom, camera.top, { room: ROOM, apart: 34 });
  const special = chosenIn([pointed?.[0], row], first, end);
  const right = plot[0] - 9;
  const label = lettersAt(camera.zoom);
  const put = (/** @type {number} */ index, /** @type {boolean} */ strong) => {
    const y = plot[1] + camera.top + (index + 0.5) * camera.zoom;
    const named = each || index === row || (strong && camera.zoom >= 1);
    const text = named ? fitted(rows.name(index), right - 4, (t) => scene.measure(t, label)) : index.toLocaleString("en");
    const tall = each ? camera.zoom : 18;
    if (strong) pen.box(0, y - tall / 2, plot[0] - 6, tall, palette.paper);
    const colour = index === row ? palette.mark : named || strong ? palette.ink : palette.soft;
    pen.text(text, right, y + 0.5, { colour, size: named ? label : SMALL, align: "end", weight: strong ? 600 : 400 });
  };
  for (const { index } of clearOf(marks, special, camera.zoom, plot[3], each ? ROOM - 1 : 18)) put(index, false);
  if (each) drawJoins(marks, rows, (from, to) => pen.box(plot[0] - 5, plot[1] + camera.top + (from + 0.25) * camera.zoom, 1.5, (to - from + 0.5) * camera.zoom, palette.soft));
  for (const index of special) put(index, true);
}

/** A line along the tokens of each word that has several. @param {import("./axes.js").Mark[]} marks @param {Side} side @param {(from: number, to: number) => void} line */
function drawJoins(marks, side, line) {
  let from = -1;
  for (const { index } of marks) {
    if (side.joined(index)) {
      if (from < 0) from = index - 1;
      continue;
    }
    if (from >= 0) line(from, index - 1);
    from = -1;
  }
  if (from >= 0) line(from, marks[marks.length - 1].index);
}

/** The same above the columns: standing, leaning or lying as the columns have room. @param {Pen} pen @param {Scene} scene */
function drawColumnNames(pen, scene) {
  const { camera, plot, palette, columns, pointed, column } = scene;
  const [, , first, end] = camera.bounds;
  const { each, marks } = marksOn(first, end, camera.zoom, camera.left, { room: ROOM, apart: 64 });
  const special = chosenIn([pointed?.[1], column], first, end);
  const leaning = camera.zoom >= UPRIGHT;
  const label = lettersAt(camera.zoom);
  const turn = leaning ? -50 : -90;
  const longest = (plot[1] - 14) / (leaning ? Math.sin((50 * Math.PI) / 180) : 1);
  const put = (/** @type {number} */ index, /** @type {boolean} */ strong) => {
    const x = plot[0] + camera.left + (index + 0.5) * camera.zoom;
    const colour = index === column ? palette.mark : each || strong ? palette.ink : palette.soft;
    if (!each && index !== column && !(strong && camera.zoom >= 1)) {
      if (strong) pen.box(x - 30, plot[1] - 19, 60, 17, palette.paper);
      pen.text(index.toLocaleString("en"), x, plot[1] - 10, { colour, size: SMALL, align: "middle", weight: strong ? 600 : 400 });
      return;
    }
    const text = fitted(columns.name(index), longest, (t) => scene.measure(t, label));
    const wide = each ? camera.zoom : 18;
    if (strong && !leaning) pen.box(x - wide / 2, 0, wide, plot[1] - 6, palette.paper);
    pen.text(text, x, plot[1] - 8, { colour, size: label, turn, weight: strong ? 600 : 400 });
  };
  for (const { index } of clearOf(marks, special, camera.zoom, plot[2], each ? ROOM - 1 : 52)) put(index, false);
  if (each) drawJoins(marks, columns, (from, to) => pen.box(plot[0] + camera.left + (from + 0.25) * camera.zoom, plot[1] - 4, (to - from + 0.5) * camera.zoom, 1.5, palette.soft));
  for (const index of special) put(index, true);
}

/**
 * The largest weight under each pixel of a profile, or of each unit where units are wider.
 * @param {Float32Array} profile
 * @param {number} first
 * @param {number} end
 * @param {number} zoom
 * @param {number} start  pixels from the plot's edge to unit 0
 * @returns {[at: number, size: number, weight: number, index: number][]}
 */
export function barsOf(profile, first, end, zoom, start) {
  /** @type {[number, number, number, number][]} */
  const bars = [];
  for (let index = first; index < end; ) {
    const pixel = Math.floor(start + index * zoom);
    const next = zoom >= 1 ? index + 1 : Math.min(end, Math.max(index + 1, Math.ceil((pixel + 1 - start) / zoom)));
    let [largest, where] = [-1, index];
    for (let at = index; at < next; at++) if (profile[at] > largest) [largest, where] = [profile[at], at];
    if (largest > 0) bars.push([zoom >= 1 ? start + index * zoom : pixel, Math.max(1, zoom - (zoom > 4 ? 1 : 0)), largest, where]);
    index = next;
  }
  return bars;
}

/** @param {Float32Array} profile */
export const largestOf = (profile) => profile.reduce((most, weight) => (weight > most ? weight : most), 0);

/** The pinned row as bars below its columns. @param {Pen} pen @param {Scene} scene */
function drawRowProfile(pen, scene) {
  const { camera, plot, palette, rowProfile } = scene;
  const [x, y, w, h] = matrixBox(scene);
  const base = y + h + STRIP - 8;
  pen.box(x, base, w, 1, palette.line);
  if (!rowProfile) return;
  const largest = largestOf(rowProfile) || 1;
  const high = STRIP - 30;
  pen.text(brief(largest), plot[0] - 9, base - high, { colour: palette.soft, size: SMALL, align: "end" });
  const [, , first, end] = camera.bounds;
  pen.within(x, base - STRIP + 8, w, STRIP, () => {
    for (const [at, size, weight] of barsOf(rowProfile, first, end, camera.zoom, camera.left)) {
      const tall = Math.max(1, (weight / largest) * high);
      pen.box(plot[0] + at, base - tall, size, tall, palette.mark);
      if (camera.zoom < NUMBERED || weight < 0.005) continue;
      pen.text(weight.toFixed(2).replace(/^0/, ""), plot[0] + at + size / 2, base - tall - 8, { colour: palette.soft, size: SMALL, align: "middle" });
    }
  });
}

/** The pinned column as bars beside its rows. @param {Pen} pen @param {Scene} scene */
function drawColumnProfile(pen, scene) {
  const { camera, plot, palette, columnProfile } = scene;
  const [x, y, w, h] = matrixBox(scene);
  const base = x + w + 10;
  pen.box(base, y, 1, h, palette.line);
  if (!columnProfile) return;
  const largest = largestOf(columnProfile) || 1;
  const long = STRIP - 30;
  pen.text(brief(largest), base + long, plot[1] - 10, { colour: palette.soft, size: SMALL, align: "middle" });
  const [first, end] = camera.bounds;
  pen.within(base, y, STRIP, h, () => {
    for (const [at, size, weight] of barsOf(columnProfile, first, end, camera.zoom, camera.top)) {
      const wide = Math.max(1, (weight / largest) * long);
      pen.box(base, plot[1] + at, wide, size, palette.mark);
      if (camera.zoom < ROOM || weight < 0.005) continue;
      pen.text(weight.toFixed(2).replace(/^0/, ""), base + wide + 4, plot[1] + at + size / 2, { colour: palette.soft, size: SMALL });
    }
  });
}

/**
 * The legend as a part of a picture that leaves the page: the scale in numbers, and the sign of the mask.
 * @param {Pen} pen
 * @param {Scene} scene
 * @param {number} x
 * @param {number} y
 */
export function drawLegend(pen, { palette, scale, hidden }, x, y) {
  const [wide, steps] = [160, 64];
  for (let step = 0; step < steps; step++) pen.box(x + (step * wide) / steps, y, wide / steps + 0.3, 10, css(palette.at(step / (steps - 1))));
  pen.frame(x, y, wide, 10, palette.line, 1);
  const style = /** @type {const} */ ({ colour: palette.soft, size: SMALL, align: "middle" });
  for (const share of [0, 0.5, 1]) {
    const sign = share === 0 && scale.kind === "log" ? "≤ " : "";
    pen.text(sign + brief(scale.weight(share)), x + share * wide, y + 22, style);
  }
  if (!hidden) return;
  pen.hatch(x + wide + 34, y, 14, 10);
  pen.text("hidden by the mask", x + wide + 54, y + 5.5, { colour: palette.soft, size: SMALL });
}
