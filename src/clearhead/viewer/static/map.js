// The map view: a matrix that is wandered through like a map.

import { Asked } from "./asked.js";
import { Remembered } from "./axes.js";
import { Camera, within } from "./camera.js";
import { Controls } from "./controls.js";
import { make } from "./dom.js";
import { STRIP, drawMap } from "./draw.js";
import { Hands } from "./hands.js";
import { Layers } from "./layers.js";
import { Legend } from "./legend.js";
import { Minimap } from "./minimap.js";
import { CanvasPen, fontOf } from "./pens.js";
import { headsName } from "./picker.js";
import { blockParts, cellParts, hint } from "./readout.js";
import { captionOf, sheetCanvas, sheetSvg } from "./sheet.js";
import { helpSection, profileSection, removedSection, spanSection } from "./side.js";
import { continues, count, nameOf, tokensOf } from "./units.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {import("./source.js").About} About */
/** @typedef {import("./draw.js").Scene} Scene */

const SETTLED = 140; // ms after the last move until the state, and so the link, follows
const MARGIN = { right: 30, bottom: 14 }; // pixels around the cells
const MEASURED = 300; // names, all along the axis, that the room for names is made for

/** @typedef {import("./app.js").View} View */

/** @implements {View} */
export class MapView {
  /**
   * @param {HTMLElement} root
   * @param {import("./app.js").App} app
   */
  constructor(root, app) {
    this.app = app;
    this.root = root;
    /** @type {About | null} */
    this.about = null;
    /** @type {Camera | null} */
    this.camera = null;
    const failed = (/** @type {unknown} */ error) => app.say(error, () => this.retry());
    this.layers = new Layers(app, () => this.soon(), failed);
    this.asked = new Asked(app, () => this.answered(), failed);
    /** @type {[number, number] | null} */
    this.pointed = null;
    /** @type {[number, number, number, number] | null} a part while it is being chosen */
    this.choosing = null;
    this.prepared = "";
    /** @type {import("./draw.js").Side[] | null} rows, columns */
    this.sides = null;
    /** @type {{of: import("./draw.js").Side[] | null, sides: number[]} | null} */
    this.longest = null;
    this.up = false;
    this.frame = 0;
    const ruler = /** @type {CanvasRenderingContext2D} */ (make("canvas", "").getContext("2d"));
    const widths = new Remembered((text) => ((ruler.font = fontOf(12)), ruler.measureText(text).width), 4000);
    this.measure = (/** @type {string} */ text, /** @type {number} */ size) => (widths.get(text) * size) / 12;

    this.controls = new Controls(app);
    this.canvas = make("canvas", "cells", { tabindex: 0, role: "application", "aria-roledescription": "attention map" });
    this.minimap = new Minimap((x, y) => this.act((camera) => ((camera.x = x), (camera.y = y), camera.settle())));
    this.stage = make("div", "stage", {}, this.canvas);
    this.readout = make("p", "readout");
    this.legend = new Legend();
    this.side = make("div", "panel");
    const aside = make("aside", "map-side", { "aria-label": "About what is pinned and chosen" }, this.minimap.canvas, this.side);
    const whole = make("button", "chip", { type: "button", title: "Show the whole map (0)" }, "whole map");
    whole.addEventListener("click", () => this.act((camera) => camera.fit()));
    const under = make("div", "under", {}, this.legend.root, whole);
    const main = make("div", "map-main", {}, this.readout, this.stage, under);
    root.append(this.controls.root, make("div", "map-layout", {}, main, aside));
    this.hands = new Hands(this);
    new ResizeObserver(() => this.soon()).observe(this.stage);
  }

  /** @param {State} state */
  show(state) {
    this.up = true;
    const wanted = `${state.run} ${state.unit}`;
    if (wanted !== this.prepared) void this.prepare(state, wanted);
    else this.update(state);
  }

  hide() {
    this.up = false;
    this.layers.rest();
  }

  /**
   * @param {State} state
   * @param {string} wanted
   */
  async prepare(state, wanted) {
    if (!state.run) return;
    this.prepared = wanted;
    try {
      const about = await this.app.about(state.run);
      if (this.prepared !== wanted) return;
      this.about = about;
    } catch (error) {
      this.prepared = "";
      this.app.say(error, () => this.show(this.app.state));
      return;
    }
    const { unit } = this.app.state;
    const rows = this.about.rows;
    const columns = this.about.columns ?? rows;
    this.camera = new Camera(count(rows, unit), count(columns, unit));
    this.camera.fit();
    /** @type {State["camera"] | undefined} */
    this.placed = undefined;
    this.sides = [rows, columns].map((axis) => ({
      name: (/** @type {number} */ index) => nameOf(axis, unit, index),
      joined: (/** @type {number} */ index) => unit === "tokens" && continues(axis, index),
      ends: endsOf(axis, unit),
    }));
    this.update(this.app.state);
  }

  /** @param {State} given */
  update(given) {
    const { about, camera } = this;
    if (!about || !camera) return;
    const state = this.sound(given, about, camera);
    if (!state) return;
    this.controls.update(about, state);
    const picture = { heads: state.heads, join: state.join, unit: state.unit, leave: state.leave };
    this.layers.use(state.run, picture, state.pool, camera);
    this.asked.use(state, picture);
    if (state.camera !== this.placed) {
      this.placed = state.camera;
      this.layout();
      if (state.camera) camera.place = state.camera;
      else camera.fit();
    }
    this.beside();
    this.say();
    this.soon();
  }

  /** The state, if this run has what it names; else what it names too much is dropped, and said. @param {State} state @param {About} about @param {Camera} camera */
  sound(state, about, camera) {
    const { rows, columns } = camera;
    /** @type {[string, boolean, Partial<State>][]} */
    const faults = [
      ["heads", state.heads.some(([l, h]) => l >= about.layers.length || h >= about.heads.length), { heads: [[0, 0]] }],
      ["unit", !about.units.includes(state.unit), { unit: "tokens" }],
      ["row", state.row !== null && state.row >= rows, { row: null }],
      ["column", state.column !== null && state.column >= columns, { column: null }],
      ["span", state.span !== null && (state.span[1] > rows || state.span[3] > columns), { span: null }],
      ["leave", state.leave.columns.some((column) => column >= columns), { leave: { ...state.leave, columns: [] } }],
    ];
    const found = faults.filter(([, fault]) => fault);
    if (!found.length) return state;
    this.app.say(`This run does not have the ${found.map(([name]) => name).join(" and ")} that the link names.`);
    queueMicrotask(() => this.app.set(Object.assign({}, ...found.map(([, , cure]) => cure))));
    return null;
  }

  /** Move, and let the state follow when the move is over. @param {(camera: Camera) => void} move */
  act(move) {
    if (!this.camera) return;
    move(this.camera);
    this.soon();
    clearTimeout(this.settling);
    this.settling = setTimeout(() => {
      if (!this.camera || !this.up) return;
      this.placed = this.camera.zoom <= this.camera.fitting * 1.0001 ? null : this.camera.place;
      this.app.set({ camera: this.placed });
    }, SETTLED);
  }

  soon() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
  }

  /** The sizes of the picture's parts; the camera's window is the plot. @returns {import("./pens.js").Box} */
  layout() {
    const { state } = this.app;
    const { clientWidth: width, clientHeight: height } = this.stage;
    const [left, top] = this.gutters(width);
    const right = Math.max(MARGIN.right, state.column === null ? 0 : STRIP + 12);
    const bottom = Math.max(MARGIN.bottom, state.row === null ? 0 : STRIP);
    /** @type {import("./pens.js").Box} */
    const plot = [left, top, Math.max(40, width - left - right), Math.max(40, height - top - bottom)];
    this.camera?.resize(plot[2], plot[3]);
    this.plot = plot;
    return plot;
  }

  /** Room for the names beside the rows and above the columns. @param {number} width */
  gutters(width) {
    if (this.longest?.of !== this.sides) {
      const widest = (/** @type {import("./draw.js").Side} */ side, /** @type {number} */ size) => {
        let most = 0;
        const step = Math.max(1, size / MEASURED);
        for (let at = 0; at < size; at += step) most = Math.max(most, this.measure(side.name(Math.floor(at)), 12));
        return most;
      };
      const sizes = [this.camera?.rows ?? 0, this.camera?.columns ?? 0];
      this.longest = { of: this.sides, sides: (this.sides ?? []).map((side, at) => widest(side, sizes[at])) };
    }
    const [rows = 0, columns = 0] = this.longest.sides;
    return [Math.ceil(within(rows + 22, 46, Math.max(72, Math.min(150, width * 0.2)))), Math.ceil(within(columns + 20, 40, width < 500 ? 76 : 120))];
  }

  draw() {
    this.frame = 0;
    const { camera, about } = this;
    if (!this.up || !camera || !about || !this.stage.clientWidth) return;
    this.layout();
    const dots = devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.stage;
    const scene = this.scene(width, height, dots);
    this.asked.hover(this.pointed && this.layers.level === 0 ? this.pointed[0] : null);
    if (!this.layers.ready) {
      this.soon();
      return;
    }
    const [across, down] = [Math.round(width * dots), Math.round(height * dots)];
    if (this.canvas.width !== across || this.canvas.height !== down) {
      this.canvas.width = across;
      this.canvas.height = down;
    }
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d", { alpha: false }));
    context.setTransform(dots, 0, 0, dots, 0, 0);
    drawMap(new CanvasPen(context, this.app.palette), scene);
    this.minimap.update(camera, this.layers.overview(this.app.palette), this.app.palette);
    this.legend.update(scene.scale, this.app.palette, scene.hidden, this.pixel());
    if (this.pointed) this.say(); // what is under the pointer may have come, or become another level's
  }

  /**
   * @param {number} width
   * @param {number} height
   * @param {number} dots
   * @returns {Scene}
   */
  scene(width, height, dots) {
    const { app, camera, pointed, layers, asked } = this;
    if (!camera || !this.sides || !this.plot) throw new Error("the map is not ready");
    const { row, column, span, scale: kind } = app.state;
    const [rows, columns] = this.sides;
    const focus = pointed ?? /** @type {[number, number]} */ ([camera.y, camera.x]);
    const { pieces, hidden, scale } = layers.pieces(kind, app.palette, focus, dots, this.plot);
    const [rowProfile, columnProfile] = [asked.row(row), asked.column(column)];
    const value = (/** @type {number} */ r, /** @type {number} */ c) => layers.value(r, c);
    return { width, height, plot: this.plot, camera, palette: app.palette, pieces, hidden, value, scale, rows, columns, measure: this.measure, pointed, row, column, span: this.choosing ?? span, rowProfile, columnProfile };
  }

  /** What a pixel of the picture stands for. */
  pixel() {
    const { level } = this.layers;
    if (!level) return "";
    const side = (2 ** level).toLocaleString("en");
    return `each pixel: the ${this.app.state.pool === "mean" ? "mean" : "largest"} of ${side} × ${side} weights`;
  }

  /** @param {number} x @param {number} y @returns {[number, number]} */
  inPlot(x, y) {
    const [left, top, w, h] = this.plot ?? [0, 0, 1, 1];
    return [within(x - left, 0, w), within(y - top, 0, h)];
  }

  /**
   * What is under a pixel of the canvas: a row beside the map, a column above it, or both in it.
   * @param {number} x
   * @param {number} y
   * @returns {[row: number | null, column: number | null] | null}
   */
  under(x, y) {
    const { camera, plot } = this;
    if (!camera || !plot) return null;
    const [row, column] = camera.unitAt(x - plot[0], y - plot[1]).map(Math.floor);
    const inRows = y >= plot[1] && y < plot[1] + plot[3] && row >= 0 && row < camera.rows;
    const inColumns = x >= plot[0] && x < plot[0] + plot[2] && column >= 0 && column < camera.columns;
    if (!inRows && !inColumns) return null;
    if (inRows && !inColumns && x >= plot[0]) return null;
    if (inColumns && !inRows && y >= plot[1]) return null;
    return [inRows ? row : null, inColumns ? column : null];
  }

  /** @param {[number | null, number | null] | null} at @param {boolean} [aloud] */
  point(at, aloud = false) {
    const cell = at && at[0] !== null && at[1] !== null ? /** @type {[number, number]} */ ([at[0], at[1]]) : null;
    if (String(cell) === String(this.pointed)) return;
    this.pointed = cell;
    this.aloud = aloud;
    this.say();
    this.soon();
  }

  /** The reader wishes to try again what has failed. */
  retry() {
    this.layers.tiles?.resume();
    this.asked.forgetAll();
    this.update(this.app.state);
  }

  answered() {
    this.beside();
    this.say();
    this.soon();
  }

  /** What is under the pointer, in words and numbers. */
  say() {
    const { about, camera, pointed, sides } = this;
    if (!about || !camera || !sides) return;
    const name = headsName(about, this.app.state);
    const size = `${camera.rows.toLocaleString("en")} × ${camera.columns.toLocaleString("en")} ${this.app.state.unit}`;
    this.canvas.setAttribute("aria-label", `${name}, ${size}. Rows read columns. Arrow keys move from cell to cell, plus and minus zoom, 0 shows the whole, Enter pins the row, Shift Enter the column, Shift with arrows chooses a part, z zooms to it.`);
    this.readout.replaceChildren(...this.parts(about, camera, pointed));
    if (pointed && this.aloud) this.app.announce(this.readout.textContent ?? "");
  }

  /** @param {About} about @param {Camera} camera @param {[number, number] | null} cell */
  parts(about, camera, cell) {
    if (!cell || !this.sides) return [hint(matchMedia("(pointer: coarse)").matches)];
    const { layers, asked } = this;
    const { level } = layers;
    if (level) return blockParts({ cell, level, rows: camera.rows, columns: camera.columns, value: layers.value(...cell), pool: this.app.state.pool });
    const profile = asked.known(cell[0]);
    const weight = profile?.[cell[1]] ?? layers.value(...cell);
    const from = asked.headOf(...cell);
    const head = from && `${about.layers[from[0]]}.${about.heads[from[1]]}`;
    const [row, column] = this.sides.map((side, at) => side.name(cell[at]));
    return cellParts({ cell, row, column, weight, profile, decimals: about.decimals, head });
  }

  /** The sections beside the map. */
  beside() {
    const { about, asked, sides, app } = this;
    if (!about || !sides) return;
    const { row, column, span, leave } = app.state;
    const [rows, columns] = sides;
    const common = { decimals: about.decimals, more: /** @type {HTMLElement[]} */ ([]) };
    const sections = [];
    if (row !== null) {
      const go = (/** @type {number} */ to) => this.visit(row, to);
      sections.push(profileSection({ ...common, name: rows.name(row), verb: "reads", profile: asked.row(row), nameOf: columns.name, go, unpin: () => app.set({ row: null }) }));
    }
    if (column !== null) {
      const out = leave.columns.includes(column);
      const toggle = make("button", "chip", { type: "button" }, out ? "take this column in again" : "leave this column out");
      toggle.addEventListener("click", () => this.controls.leave({ columns: out ? leave.columns.filter((c) => c !== column) : [...leave.columns, column] }));
      const go = (/** @type {number} */ to) => this.visit(to, column);
      sections.push(profileSection({ ...common, name: columns.name(column), verb: "is read by", profile: asked.column(column), nameOf: rows.name, go, unpin: () => app.set({ column: null }), more: [toggle] }));
    }
    if (span) sections.push(spanSection({ span, rowName: rows.name, columnName: columns.name, mass: asked.mass, zoom: () => this.act((camera) => camera.frame(span)), close: () => app.set({ span: null }) }));
    if (leave.special || leave.sinks || leave.columns.length) sections.push(removedSection({ removed: asked.removed, rowName: rows.name, columnName: columns.name }));
    this.side.replaceChildren(...(sections.length ? sections : [helpSection(headsName(about, app.state), about)]));
  }

  /** Bring a cell near, and point at it. @param {number} row @param {number} column */
  visit(row, column) {
    this.act((camera) => {
      if (camera.zoom < 14) camera.frame([row - 12, row + 13, column - 12, column + 13]);
      camera.reveal(row, column);
    });
    this.layers.look();
    this.point([row, column], true);
  }

  /** Which rows and columns are seen: [a, b) and [c, d). @returns {{rows: [number, number], columns: [number, number]} | null} */
  seen() {
    if (!this.camera) return null;
    const [a, b, c, d] = this.camera.bounds;
    return { rows: [a, b], columns: [c, d] };
  }

  /** What is seen, with its caption and its legend: for a picture that leaves the page. */
  sheet() {
    if (!this.about || !this.camera) throw new Error("map: nothing is shown yet");
    this.layout();
    const scene = { ...this.scene(this.stage.clientWidth, this.stage.clientHeight, 2), pointed: null };
    return /** @type {const} */ ([scene, captionOf(this.about, this.app.state, headsName(this.about, this.app.state)), this.pixel()]);
  }

  toCanvas() {
    return sheetCanvas(...this.sheet());
  }

  toSvg() {
    return sheetSvg(...this.sheet());
  }
}

/**
 * Where one document ends and another begins, in units; special tokens of their own are none.
 * @param {import("./source.js").Axis} axis
 * @param {State["unit"]} unit
 */
function endsOf(axis, unit) {
  const documents = axis.documents.filter(([first, end]) => axis.tokens.slice(first, end).some((token) => !token[5]));
  const ends = new Set(documents.slice(0, -1).map(([, end]) => end));
  if (unit === "tokens" || !ends.size) return [...ends];
  const found = [];
  for (let at = 0; at < count(axis, unit) - 1; at++) if (ends.has(tokensOf(axis, unit, at)[1])) found.push(at + 1);
  return found;
}
