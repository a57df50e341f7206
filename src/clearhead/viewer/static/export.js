// What is seen leaves the page: as a picture, as numbers, as a link that brings it back.

import { make } from "./dom.js";
import { textOf } from "./layout.js";
import { headsName } from "./picker.js";
import { pictureOf } from "./reading.js";
import { snapshot } from "./snapshot.js";
import { toHash } from "./state.js";
import { SIDE, spotsIn } from "./tiles.js";
import { visible } from "./units.js";

const MOST_CELLS = 1 << 18; // of a table; of more, what stands for many is saved

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./source.js").About} About */
/** @typedef {import("./state.js").State} State */

/** @typedef {{columns: string[], rows: (string | number | null)[][]}} Numbers */

/**
 * A table as CSV: a header, a line for each row, quotes where they are needed, nothing for null.
 * @param {Numbers} numbers @returns {string}
 */
export function toCsv({ columns, rows }) {
  const cell = (/** @type {string | number | null} */ value) => {
    const text = value === null ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows].map((row) => row.map(cell).join(",") + "\n").join("");
}

/**
 * The same as JSON, with what the numbers are of.
 * @param {Numbers} numbers @param {About} about @param {State} state @returns {string}
 */
export function toJson({ columns, rows }, about, state) {
  const { view, join, unit, leave, direction } = state;
  const heads = state.heads.map(([layer, head]) => ({ layer: about.layers[layer], head: about.heads[head] }));
  const of = { model: about.model, text: about.text, view, heads, join, unit, direction, left_out: leave, decimals: about.decimals, notes: about.notes, proof: about.proof };
  const lines = rows.map((row) => Object.fromEntries(columns.map((name, at) => [name, row[at]])));
  return JSON.stringify({ ...of, rows: lines }, null, 1) + "\n";
}

/**
 * A name for a file that says what is in it, of letters, digits and dashes of any script.
 * @param {About} about @param {State} state @param {string} ending @returns {string}
 */
export function fileName(about, state, ending) {
  const plain = (/** @type {string} */ text, /** @type {number} */ most) =>
    [...text.normalize("NFC").replace(/[^\p{L}\p{M}\p{N}]+/gu, "-")].slice(0, most).join("").replace(/^-+|-+$/g, "");
  const { heads } = state;
  const one = heads.length === 1 ? `L${about.layers[heads[0][0]]}H${about.heads[heads[0][1]]}` : `${state.join}-of-${heads.length}-heads`;
  const parts = ["clearhead", plain(about.model, 40), plain(about.title || about.text, 40), state.view, state.view === "heads" ? "" : one];
  return `${parts.filter(Boolean).join("_")}.${ending}`;
}

/**
 * What stands under a picture: what it is of, and what must be known to read it.
 * @param {About} about @param {State} state @returns {string[]}
 */
export function captionOf(about, state) {
  const title = visible(about.title || about.text);
  const short = [...title].length > 90 ? `${[...title].slice(0, 89).join("")}…` : title;
  const left = [state.leave.special ? "special tokens" : "", state.leave.sinks ? "sinks" : "", state.leave.columns.length ? `${state.leave.columns.length} columns` : ""].filter(Boolean);
  const scale = state.view === "text" && state.scale === "root" ? "linear" : state.scale; // a text is painted in proportion
  const what = [about.model, state.view === "heads" ? "every head" : headsName(about, state), `between ${state.unit}`, `${{ linear: "linear", root: "square-root", log: "logarithmic" }[scale]} colour`];
  if (left.length) what.push(`${left.join(" and ")} left out, the rest of each row made to sum to 1`);
  if (about.decimals !== null) what.push(`weights rounded to ${about.decimals} decimals`);
  return [short, what.join(" · "), ...about.notes.map((note) => `The text was ${note}.`), ...(about.proof ? [about.proof] : [])];
}

export class ExportMenu {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    const item = (/** @type {string} */ word, /** @type {string} */ title, /** @type {() => Promise<void>} */ run) => {
      const button = make("button", "quiet", { type: "button", title }, word);
      button.addEventListener("click", () => {
        this.root.open = false;
        void run().catch((error) => app.say(error));
      });
      return button;
    };
    this.root = make("details", "chooser export", {}, make("summary", "chip", {}, "save"));
    this.link = item("copy link", "A link that brings back exactly this view", () => this.copy());
    this.root.append(
      make("div", "chooser-box panel column-of", {},
        item("SVG", "What is seen, as vectors", () => this.picture("svg")),
        item("PNG", "What is seen, as pixels", () => this.picture("png")),
        item("CSV", "The numbers, as a table", () => this.numbers("csv")),
        item("JSON", "The numbers, with what they are of", () => this.numbers("json")),
        this.link,
      ),
    );
    this.root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      this.root.open = false;
      /** @type {HTMLElement} */ (this.root.firstChild).focus();
    });
    this.root.addEventListener("toggle", () => this.watch());
  }

  /** Close when something else is pressed. */
  watch() {
    this.watching?.abort();
    if (!this.root.open) return;
    this.watching = new AbortController();
    const close = (/** @type {Event} */ event) => {
      if (!event.composedPath().includes(this.root)) this.root.open = false;
    };
    document.addEventListener("pointerdown", close, { signal: this.watching.signal });
  }

  /** @param {"svg" | "png"} kind */
  async picture(kind) {
    const about = await this.app.about();
    const { state, current: view, palette } = this.app;
    const caption = captionOf(about, state);
    const save = (/** @type {Blob} */ blob) => saved(blob, fileName(about, state, kind));
    if (kind === "svg" && view?.toSvg) return save(new Blob([view.toSvg()], { type: "image/svg+xml" }));
    if (kind === "png" && view?.toCanvas) return save(await pngOf(view.toCanvas()));
    const root = /** @type {HTMLElement} */ (this.app.views.get(state.view)?.root);
    const figure = snapshot(root, palette, caption.slice(0, 2).join(", "));
    figure.caption(caption);
    save(kind === "svg" ? new Blob([figure.toSvg()], { type: "image/svg+xml" }) : await pngOf(figure.toCanvas()));
  }

  /** @param {"csv" | "json"} kind */
  async numbers(kind) {
    const about = await this.app.about();
    const { state, current: view } = this.app;
    const part = view?.seen?.();
    const numbers = part ? await cellsOf(this.app, about, part) : await view?.numbers?.();
    if (!numbers) throw new Error("This view has no numbers of its own to save.");
    const text = kind === "csv" ? toCsv(numbers) : toJson(numbers, about, state);
    saved(new Blob([text], { type: kind === "csv" ? "text/csv" : "application/json" }), fileName(about, state, kind));
  }

  async copy() {
    const link = `${location.href.replace(/#.*$/, "")}#${toHash(this.app.state)}`;
    try {
      await navigator.clipboard.writeText(link);
      this.app.announce("The link is copied.");
      this.link.textContent = "copied";
      setTimeout(() => (this.link.textContent = "copy link"), 2000);
    } catch {
      this.app.say(`The link to this view: ${link}`); // where the browser keeps the clipboard to itself
    }
  }
}

/**
 * The cells of a part of the map: each exact, or of a large part pooled as they are seen.
 * @param {Pick<App, "source" | "state">} app @param {About} about
 * @param {{rows: [number, number], columns: [number, number]}} part
 * @returns {Promise<Numbers>}
 */
export async function cellsOf({ source, state }, about, { rows: [a, b], columns: [c, d] }) {
  const [down, across] = [about.rows, about.columns ?? about.rows];
  const level = Math.max(0, Math.ceil(Math.log2(((b - a) * (d - c)) / MOST_CELLS) / 2));
  /** @type {Numbers["rows"]} */
  const rows = [];
  const known = (/** @type {number} */ value) => (Number.isNaN(value) ? null : value);
  if (!level) {
    const { arrays } = await source.ask(state.run, "window", { ...pictureOf(state), rows: [a, b], columns: [c, d] });
    arrays[0].forEach((value, at) => {
      const [row, column] = [a + Math.floor(at / (d - c)), c + (at % (d - c))];
      rows.push([row, textOf(down, state.unit, row), column, textOf(across, state.unit, column), known(value)]);
    });
    return { columns: ["row", "row_text", "column", "column_text", "weight"], rows };
  }
  for (const spot of spotsIn(level, [a, b, c, d], [a, c])) {
    const tile = await wholeTile(source, state, spot);
    const side = 2 ** level;
    tile.values.forEach((value, at) => {
      const [row, column] = [(spot.row * SIDE + Math.floor(at / tile.columns)) * side, (spot.column * SIDE + (at % tile.columns)) * side];
      if (row + side > a && row < b && column + side > c && column < d) rows.push([row, row + side, column, column + side, known(value)]);
    });
  }
  return { columns: ["row", "row_end", "column", "column_end", `${state.pool}_weight`], rows };
}

/** A tile, asked for until all of it has come. @param {App["source"]} source @param {State} state @param {import("./tiles.js").Spot} spot */
async function wholeTile(source, state, spot) {
  for (;;) {
    const { json, arrays } = await source.ask(state.run, "tile", { ...pictureOf(state), pool: state.pool, ...spot });
    if (json.done) return { values: arrays[0], columns: /** @type {number} */ (json.columns) };
    await new Promise((done) => setTimeout(done, 100));
  }
}

/** @param {HTMLCanvasElement} canvas @returns {Promise<Blob>} */
function pngOf(canvas) {
  return new Promise((done, failed) => canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("The picture is too large for this browser; save it as SVG."))), "image/png"));
}

/** Hand a file to the browser. @param {Blob} blob @param {string} name */
function saved(blob, name) {
  const link = make("a", "", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
