// What is seen of a map, as a picture that leaves the page: with its caption and its legend.

import { make } from "./dom.js";
import { STRIP, drawLegend, drawMap } from "./draw.js";
import { CanvasPen, SvgPen } from "./pens.js";

const FOOT = 76; // pixels below the map, for caption and legend
const LEGEND = 620; // pixels that the legend and its notes may take
const DOTS = 2; // of a picture, to a pixel of the screen
const SCALES = { linear: "linear", root: "square-root", log: "logarithmic" };

/**
 * What the picture shows, in one line.
 * @param {import("./source.js").About} about
 * @param {import("./state.js").State} state
 * @param {string} heads
 */
export function captionOf(about, state, heads) {
  const { special, sinks, columns } = state.leave;
  const left = [special ? "special tokens" : "", sinks ? "sinks" : "", columns.length ? `${columns.length} chosen columns` : ""].filter(Boolean);
  const without = left.length ? ` · without ${left.join(", ")}, rows renormalised` : "";
  return `${about.model} · ${heads} · ${state.unit} · ${SCALES[state.scale]} scale${without}`;
}

/**
 * The scene without the empty paper to its right.
 * @param {import("./draw.js").Scene} scene
 * @param {string} caption
 * @returns {import("./draw.js").Scene}
 */
function trimmed(scene, caption) {
  const { camera, plot, column, measure } = scene;
  const right = plot[0] + camera.left + camera.columns * camera.zoom + (column === null ? 30 : STRIP + 16);
  return { ...scene, width: Math.min(scene.width, Math.ceil(Math.max(right, measure(caption, 12) + 24, LEGEND))) };
}

/**
 * @param {import("./pens.js").Pen} pen
 * @param {import("./draw.js").Scene} scene
 * @param {string} caption
 * @param {string} note  what a pixel stands for
 */
function drawSheet(pen, scene, caption, note) {
  const { width, height, palette } = scene;
  pen.box(0, 0, width, height + FOOT, palette.paper);
  drawMap(pen, scene);
  pen.text(caption, 12, height + 14, { colour: palette.ink, size: 12 });
  drawLegend(pen, scene, 12, height + 34);
  if (note) pen.text(note, scene.hidden ? 356 : 206, height + 39, { colour: palette.soft, size: 11 });
}

/**
 * @param {import("./draw.js").Scene} seen
 * @param {string} caption
 * @param {string} note
 */
export function sheetCanvas(seen, caption, note) {
  const scene = trimmed(seen, caption);
  const canvas = make("canvas", "", { width: Math.round(scene.width * DOTS), height: Math.round((scene.height + FOOT) * DOTS) });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(DOTS, DOTS);
  drawSheet(new CanvasPen(context, scene.palette), scene, caption, note);
  return canvas;
}

/**
 * @param {import("./draw.js").Scene} seen
 * @param {string} caption
 * @param {string} note
 */
export function sheetSvg(seen, caption, note) {
  const scene = trimmed(seen, caption);
  const pen = new SvgPen(scene.palette);
  drawSheet(pen, scene, caption, note);
  return pen.document(scene.width, scene.height + FOOT, caption);
}
