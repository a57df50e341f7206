// Two heads, two texts or two models side by side, and where their shapes agree the difference.

import { Camera } from "./camera.js";
import { css } from "./colour.js";
import { diverging } from "./diverging.js";
import { make } from "./dom.js";
import { Gestures } from "./gestures.js";
import { isolated, shown } from "./labels.js";
import { textOf } from "./layout.js";
import { Legend } from "./legend.js";
import { HeadPicker, headsName } from "./picker.js";
import { Plot } from "./plot.js";
import { isCancelled } from "./source.js";
import { Scale, brief, leastAbove0 } from "./tint.js";
import { count, nameOf, visible } from "./units.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./source.js").About} About */
/** @typedef {import("./state.js").State} State */
/** @typedef {import("./tiles.js").Tile} Tile */

const MOST_CELLS = 1 << 18; // of a table of numbers
const LIKE = /** @type {const} */ (["left", "right"]);

/** How many rows and columns a run has. @param {About} about @param {State["unit"]} unit @returns {[number, number]} */
const shapeOf = (about, unit) => [count(about.rows, unit), count(about.columns ?? about.rows, unit)];

/**
 * One tile less another, cell by cell; hidden where both are, and where one is, that one is nothing.
 * @param {Float32Array} right @param {Float32Array} left @returns {Float32Array}
 */
export function difference(right, left) {
  return right.map((value, at) => {
    if (Number.isNaN(value)) return Number.isNaN(left[at]) ? NaN : -left[at];
    return value - (Number.isNaN(left[at]) ? 0 : left[at]);
  });
}

/**
 * The same part of another matrix: of its own size, where the two differ.
 * @param {Camera} from @param {Camera} to
 */
export function follow(from, to) {
  const [across, down] = [to.columns / from.columns, to.rows / from.rows];
  to.place = { x: from.x * across, y: from.y * down, zoom: from.zoom / Math.max(across, down) };
}

/**
 * What a run is called beside others: its text, and its model where there are several.
 * @param {import("./source.js").RunLine[]} runs @param {string} id
 */
export function calledOf(runs, id) {
  const run = runs.find((one) => one.id === id);
  if (!run) return id;
  const others = runs.filter(({ id: one }) => one !== id);
  const model = others.some((one) => one.model !== run.model) ? ` · ${run.model}` : "";
  const twin = others.some((one) => one.model === run.model && one.title === run.title) ? ` · ${id}` : "";
  return `${Array.from(visible(run.title)).slice(0, 60).join("") || id}${model}${twin}`;
}

export class CompareView {
  /** @param {HTMLElement} root @param {App} app */
  constructor(root, app) {
    this.app = app;
    /** @type {{abouts: [About, About], pictures: [object, object], runs: [string, string], agree: boolean, state: State} | null} */
    this.drawn = null;
    /** @type {Camera[]} */
    this.cameras = [];
    this.size = [0, 0];
    /** @type {[number, number] | null} */
    this.at = null;
    this.on = 0;
    const failed = (/** @type {unknown} */ error) => app.say(error);
    this.plots = ["left", "right", "difference"].map(() => new Plot(failed, () => this.soon()));
    const other = /** @type {App} */ (/** @type {unknown} */ (new OtherHeads(app)));
    this.pickers = [new HeadPicker(app), new HeadPicker(other)];
    this.run = make("select", "field", { "aria-label": "The run on the right" });
    this.run.addEventListener("change", () => this.turn(this.run.value));
    this.titles = [make("h3", ""), make("h3", ""), make("h3", "", {}, "right less left")];
    this.legend = new Legend();
    this.ramp = make("canvas", "", { width: 201, height: 1, "aria-hidden": "true" });
    this.ends = [make("span", ""), make("span", ""), make("span", "")];
    const diverge = make("div", "legend", { role: "group", "aria-label": "Colours of the difference" }, make("div", "ramp", {}, this.ramp, make("div", "ends", {}, ...this.ends)));
    const bars = [[this.pickers[0].root], [this.run, this.pickers[1].root], []];
    this.cells = this.plots.map(({ canvas }, at) => make("figure", "compared-one", {}, make("div", "bar controls", {}, ...bars[at]), this.titles[at], canvas, at === 2 ? diverge : at ? make("div", "") : this.legend.root));
    this.note = make("p", "fine");
    this.readout = make("p", "readout", { "aria-live": "polite" });
    root.append(this.note, this.readout, make("div", "compared-all", {}, ...this.cells));
    this.plots.forEach(({ canvas }, at) => this.listen(canvas, at));
    this.watch = new ResizeObserver(() => this.soon());
    for (const cell of this.cells) this.watch.observe(cell);
  }

  /** @param {HTMLCanvasElement} canvas @param {number} at */
  listen(canvas, at) {
    const moved = (/** @type {(camera: Camera) => void} */ move) => {
      const camera = this.cameras[at];
      if (!camera) return;
      move(camera);
      this.cameras.forEach((other) => other !== camera && follow(camera, other));
      this.soon();
    };
    const point = (/** @type {number} */ x, /** @type {number} */ y) => {
      const [row, column] = this.cameras[at]?.unitAt(x, y).map(Math.floor) ?? [-1, -1];
      const inside = row >= 0 && column >= 0 && row < this.cameras[at]?.rows && column < this.cameras[at]?.columns;
      this.point(inside ? [row, column] : null, at);
    };
    new Gestures(canvas, {
      pan: (dx, dy) => moved((camera) => camera.pan(dx, dy)),
      zoom: (x, y, factor) => moved((camera) => camera.zoomAt(x, y, factor)),
      tap: point,
      twice: (x, y, out) => moved((camera) => camera.zoomAt(x, y, out ? 0.5 : 2)),
      point,
      leave: () => this.point(null, at),
      select: () => {},
    });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      const zoom = { "+": 1.5, "=": 1.5, "-": 1 / 1.5 }[event.key];
      const camera = this.cameras[at];
      if (!camera) return;
      if (step) {
        const [row, column] = this.at ?? [0, -step[1]];
        const next = /** @type {[number, number]} */ ([Math.min(camera.rows - 1, Math.max(0, row + step[0])), Math.min(camera.columns - 1, Math.max(0, column + step[1]))]);
        moved((one) => one.reveal(...next));
        this.point(next, at);
      } else if (zoom) moved((one) => one.zoomAt(one.width / 2, one.height / 2, zoom));
      else if (event.key === "0") moved((one) => one.fit());
      else return;
      event.preventDefault();
    });
  }

  /** @param {State} state */
  show(state) {
    void this.update(state).catch((error) => isCancelled(error) || this.app.say(error, () => this.show(this.app.state)));
  }

  hide() {
    for (const plot of this.plots) plot.close();
  }

  /** Another run on the right, with the heads of the left where it has them. @param {string} run */
  turn(run) {
    const { heads } = this.app.state;
    void this.app.about(run).then((about) => {
      const own = heads.filter(([layer, head]) => layer < about.layers.length && head < about.heads.length);
      this.app.set({ other: { run, heads: own.length ? own : [[0, 0]] } });
    }, (error) => this.app.say(error));
  }

  /** @param {State} state */
  async update(state) {
    const other = state.other ?? (await this.next(state));
    const abouts = await Promise.all([this.app.about(state.run), this.app.about(other.run)]);
    if (state !== this.app.state) return;
    const unit = abouts.every(({ units }) => units.includes(state.unit)) ? state.unit : "tokens";
    const { join, leave } = state;
    const pictures = /** @type {[object, object]} */ ([state.heads, other.heads].map((heads) => ({ heads, join, unit, leave })));
    const shapes = abouts.map((about) => shapeOf(about, unit));
    const agree = shapes[0].join() === shapes[1].join();
    this.drawn = { abouts: /** @type {[About, About]} */ (abouts), pictures, runs: [state.run, other.run], agree, state: { ...state, unit } };
    this.pickers[0].update(abouts[0], state);
    this.pickers[1].update(abouts[1], { ...state, heads: other.heads });
    const several = this.app.runs.length > 1;
    this.run.hidden = !several;
    this.run.replaceChildren(...this.app.runs.map(({ id }) => make("option", "", { value: id }, calledOf(this.app.runs, id))));
    this.run.value = other.run;
    this.titles.slice(0, 2).forEach((title, at) => title.replaceChildren(`${headsName(abouts[at], { heads: at ? other.heads : state.heads, join })}${several ? " · " : ""}`, several ? isolated(calledOf(this.app.runs, at ? other.run : state.run)) : ""));
    this.cells[2].hidden = !agree;
    const shape = (/** @type {number[]} */ [rows, columns]) => `${rows.toLocaleString("en")} × ${columns.toLocaleString("en")}`;
    this.note.textContent = agree ? "The same place in both; the difference is orange where the right is larger, blue where the left is." : `Their shapes differ, ${shape(shapes[0])} and ${shape(shapes[1])} ${unit}, so there is no difference to show; the two move together, each over its own text.`;
    this.see(shapes, state);
  }

  /** What to compare with first: the next head of the same run. @param {State} state */
  async next(state) {
    const about = await this.app.about(state.run);
    const [layer, head] = state.heads[0];
    const heads = /** @type {[number, number][]} */ ([[layer, (head + 1) % about.heads.length]]);
    return { run: state.run, heads };
  }

  /** @param {[number, number][]} shapes @param {State} state */
  see(shapes, state) {
    const { drawn: seen, plots } = this;
    if (!seen) return;
    const wanted = [...shapes, shapes[0]];
    if (String(this.cameras.map(({ rows, columns }) => [rows, columns])) !== String(wanted)) {
      this.cameras = wanted.map(([rows, columns]) => new Camera(rows, columns));
      this.size = [0, 0];
      this.at = null;
    }
    const ask = async (/** @type {0 | 1} */ at, /** @type {object} */ spot, /** @type {AbortSignal} */ signal) => {
      const { json, arrays } = await this.app.source.ask(seen.runs[at], "tile", { ...seen.pictures[at], pool: state.pool, ...spot }, signal);
      return /** @type {Tile} */ ({ values: arrays[0], rows: json.rows, columns: json.columns, top: json.top ?? 0, done: json.done });
    };
    const keys = LIKE.map((_, at) => JSON.stringify([seen.runs[at], seen.pictures[at], state.pool]));
    plots[0].use(keys[0], this.cameras[0], (spot, signal) => ask(0, spot, signal));
    plots[1].use(keys[1], this.cameras[1], (spot, signal) => ask(1, spot, signal));
    if (seen.agree) {
      plots[2].use(keys.join(), this.cameras[2], async (spot, signal) => {
        const [left, right] = await Promise.all([ask(0, spot, signal), ask(1, spot, signal)]);
        const values = difference(right.values, left.values);
        return { ...left, values, top: values.reduce((most, value) => Math.max(most, Math.abs(value) || 0), 0), done: left.done && right.done };
      });
    } else plots[2].close();
    this.soon();
  }

  soon() {
    cancelAnimationFrame(this.frame ?? 0);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  draw() {
    const { drawn: seen, plots, cameras } = this;
    if (!seen || !cameras.length || !this.cells[0].clientWidth) return;
    const side = Math.min(this.cells[0].clientWidth, 560);
    if (this.size[0] !== side) {
      this.size = [side, side];
      cameras.forEach((camera, at) => {
        camera.resize(side, side);
        camera.fit();
        plots[at].canvas.style.width = plots[at].canvas.style.height = `${side}px`;
      });
    }
    const { palette } = this.app;
    const tiles = plots.map((plot, at) => (at < 2 || seen.agree ? plot.look() : []));
    const both = [...tiles[0], ...tiles[1]];
    const scale = new Scale(seen.state.scale, Math.max(0, ...both.map(({ top }) => top)), Math.min(Infinity, ...both.map(({ values }) => leastAbove0(values))));
    const plain = (/** @type {number} */ value) => palette.at(scale.share(value));
    for (const at of [0, 1]) plots[at].draw(plain, `${scale.name} ${palette.dark}`, palette, this.at);
    const most = Math.max(0, ...tiles[2].map(({ top }) => top));
    if (seen.agree) plots[2].draw((value) => diverging(most ? value / most : 0, palette.dark), `${most} ${palette.dark}`, palette, this.at);
    this.legend.update(scale, palette, both.some(({ values, done }) => done && values.some(Number.isNaN)), this.pooled());
    this.diverge(most);
    this.say();
    plots.forEach(({ canvas }, at) => canvas.setAttribute("aria-label", `${["Left", "Right", "Difference"][at]}: ${this.titles[at].textContent}. Arrow keys go from cell to cell, plus and minus zoom.`));
  }

  /** What a pixel stands for, far out. */
  pooled() {
    const { level } = this.plots[0];
    return level ? `each pixel: the ${this.app.state.pool === "mean" ? "mean" : "largest"} of ${2 ** level} × ${2 ** level}` : "";
  }

  /** @param {number} most */
  diverge(most) {
    const context = /** @type {CanvasRenderingContext2D} */ (this.ramp.getContext("2d"));
    for (let x = 0; x <= 200; x++) {
      context.fillStyle = css(diverging((x - 100) / 100, this.app.palette.dark));
      context.fillRect(x, 0, 1, 1);
    }
    (most ? [`−${brief(most)}`, "0", `+${brief(most)}`] : ["", "0", ""]).forEach((text, at) => (this.ends[at].textContent = text));
  }

  /** @param {[number, number] | null} cell @param {number} on  which picture */
  point(cell, on) {
    this.at = cell;
    this.on = on;
    this.soon();
  }

  /** Say the numbers of the cell that is pointed at. */
  say() {
    const { drawn: seen, at: cell, on: at } = this;
    if (!seen) return;
    if (!cell) return this.readout.replaceChildren("Point at a cell for its weights.");
    const { abouts, state } = seen;
    const sides = seen.agree ? [0, 1] : [Math.min(at, 1)];
    const values = this.plots.map((plot) => plot.value(...cell));
    if (sides.some((side) => values[side] === undefined)) return this.readout.replaceChildren("…"); // still to come
    const value = (/** @type {number} */ side) => values[side] ?? NaN;
    const name = (/** @type {number} */ side) => {
      const about = abouts[side];
      return [isolated(nameOf(about.rows, state.unit, cell[0])), " reads ", isolated(nameOf(about.columns ?? about.rows, state.unit, cell[1])), " "];
    };
    const decimals = abouts[0].decimals;
    const same = seen.runs[0] === seen.runs[1];
    const parts = sides.flatMap((side, place) => [place ? (same ? " and " : "; ") : "", ...(place && same ? [] : name(side)), make("strong", "", {}, shown(value(side), decimals)), ` (${LIKE[side]})`]);
    const apart = seen.agree ? [", difference ", make("strong", "", {}, signed(value(1) - value(0), decimals))] : [];
    this.readout.replaceChildren(...parts, ...apart, this.plots[0].level ? ` · ${this.pooled()}` : "");
  }

  /** The cells that are seen, in both and their difference. */
  async numbers() {
    const { drawn: seen } = this;
    if (!seen) return { columns: [], rows: [] };
    const { abouts, state, agree } = seen;
    const parts = await Promise.all(LIKE.map((_, at) => this.part(at)));
    const [first] = parts;
    /** @type {(string | number | null)[][]} */
    const rows = [];
    const known = (/** @type {number} */ value) => (Number.isNaN(value) ? null : value);
    parts.forEach(({ a, c, width, values }, at) => {
      if (agree && at) return;
      const about = abouts[at];
      values.forEach((value, place) => {
        const [row, column] = [a + Math.floor(place / width), c + (place % width)];
        const names = [row, textOf(about.rows, state.unit, row), column, textOf(about.columns ?? about.rows, state.unit, column)];
        if (agree) rows.push([...names, known(value), known(parts[1].values[place]), known(difference(parts[1].values.subarray(place, place + 1), first.values.subarray(place, place + 1))[0])]);
        else rows.push([LIKE[at], ...names, known(value)]);
      });
    });
    const names = ["row", "row_text", "column", "column_text"];
    return { columns: agree ? [...names, "left", "right", "difference"] : ["side", ...names, "weight"], rows };
  }

  /** @param {number} at */
  async part(at) {
    const { runs, pictures } = /** @type {NonNullable<CompareView["drawn"]>} */ (this.drawn);
    const [a, b, c, d] = this.cameras[at].bounds;
    if ((b - a) * (d - c) > MOST_CELLS) throw new Error(`What is seen is ${((b - a) * (d - c)).toLocaleString("en")} cells; zoom in until there are at most ${MOST_CELLS.toLocaleString("en")} to save their numbers.`);
    const { arrays } = await this.app.source.ask(runs[at], "window", { ...pictures[at], rows: [a, b], columns: [c, d] });
    return { a, c, width: d - c, values: arrays[0] };
  }
}

/** @param {number} value @param {number | null} decimals */
const signed = (value, decimals) => `${value < 0 ? "−" : "+"}${shown(Math.abs(value), decimals)}`;

/** The app as the picker of the right side sees it: its heads are those compared with. */
class OtherHeads {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
  }

  get state() {
    const { state } = this.app;
    return { ...state, heads: state.other?.heads ?? state.heads };
  }

  /** @param {Partial<State>} change */
  set({ heads, ...rest }) {
    const { state } = this.app;
    const run = state.other?.run ?? state.run;
    this.app.set({ ...rest, ...(heads ? { other: { run, heads } } : {}) });
  }
}
