// The steps view: one pair of tokens in one head, from query and key to the weight, every number shown.

import { css, ink } from "./colour.js";
import { diverging } from "./diverging.js";
import { make, Switch } from "./dom.js";
import { isolated, shown } from "./labels.js";
import { HeadPicker } from "./picker.js";
import { isCancelled } from "./source.js";
import { brief } from "./tint.js";
import { nameOf, tokensOf } from "./units.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./source.js").About} About */
/** @typedef {import("./source.js").Axis} Axis */
/** @typedef {import("./state.js").State} State */

/**
 * The answer of a source.
 * @typedef {object} Steps
 * @property {number[]} q
 * @property {number[]} k
 * @property {number[]} products
 * @property {number} score
 * @property {number} scale
 * @property {number} scaled
 * @property {number | null} softcap
 * @property {number} capped
 * @property {number | null} bias
 * @property {boolean} masked
 * @property {string | null} mask
 * @property {number | null} logit
 * @property {number | null} lse
 * @property {number | null} sink
 * @property {number | null} sink_weight
 * @property {number | null} weight
 * @property {number | null} rank
 * @property {number | null} seen
 * @property {[number, number | null][]} row
 * @property {number | null} rest
 * @property {(number | null)[][] | null} values  of the token that is read, the same times its weight, and the row's output
 * @property {string | null} values_why
 */

/** A line of the chain: what is done, with what, and what comes out. @typedef {{what: string, how: string, value: string}} Line */

/** @param {number | null} value */
const number = (value) => (value === null ? "not a number" : brief(value, 6).replace("-", "−"));

/**
 * From the score to the weight, a line for each step that there is.
 * @param {Steps} steps @returns {Line[]}
 */
export function chain(steps) {
  const lines = [
    { what: "score", how: `the sum of ${steps.products.length} products q·k`, value: number(steps.score) },
    { what: "scaled", how: `score × ${number(steps.scale)}`, value: number(steps.scaled) },
  ];
  if (steps.softcap) lines.push({ what: "soft-capped", how: `${number(steps.softcap)} × tanh(scaled ÷ ${number(steps.softcap)})`, value: number(steps.capped) });
  if (steps.bias !== null) lines.push({ what: "bias", how: "added for the place of the two", value: number(steps.bias) });
  const rule = steps.mask === null ? "there is none: every token may be read" : steps.mask;
  lines.push({ what: "mask", how: rule, value: steps.masked ? "hidden" : "may be read" });
  if (steps.masked) return [...lines, { what: "weight", how: "what is hidden is not read at all", value: "0" }];
  lines.push({ what: "logit", how: "what the softmax sees", value: number(steps.logit) });
  lines.push({ what: "log-sum-exp", how: `of the logits of the ${steps.seen ?? "?"} tokens that are read${steps.sink === null ? "" : `, and the sink ${number(steps.sink)}`}`, value: number(steps.lse) });
  lines.push({ what: "weight", how: "e to the power of (logit − log-sum-exp)", value: number(steps.weight) });
  return lines;
}

/** The places of the products, the largest in size first, or as they stand. @param {number[]} products @param {boolean} sorted */
export function orderOf(products, sorted) {
  const order = products.map((_, at) => at);
  return sorted ? order.sort((a, b) => Math.abs(products[b]) - Math.abs(products[a]) || a - b) : order;
}

export class StepsView {
  /** @param {HTMLElement} root @param {App} app */
  constructor(root, app) {
    this.app = app;
    this.asking = new AbortController();
    this.sorted = false;
    this.key = "";
    /** @type {[number, number]} the tokens that are shown */
    this.picked = [0, 0];
    /** @type {{steps: Steps, state: State, about: About, row: number, column: number} | null} */
    this.drawn = null;
    this.heads = new HeadPicker(app);
    this.pair = make("h2", "pair");
    this.pieces = make("div", "bar controls pieces");
    this.order = new Switch("Order of the products", [["placed", "in order"], ["sorted", "largest first"]], (how) => {
      this.sorted = how === "sorted";
      this.order.update(how);
      this.products();
    });
    this.order.update("placed");
    this.chain = make("ol", "chain", { "aria-label": "From the score to the weight" });
    this.table = make("table", "products");
    this.row = make("ol", "list softmax", { "aria-label": "The softmax of the row" });
    this.rest = make("p", "fine");
    this.values = make("p", "fine");
    this.mixed = make("table", "products values");
    this.mixing = make("section", "", {}, make("h3", "", {}, "Weight times value"), make("div", "products-frame", { tabindex: 0, role: "region", "aria-label": "Weighted values" }, this.mixed));
    this.body = make("div", "steps-body", {},
      make("section", "", {}, make("h3", "", {}, "Step by step"), this.chain, this.values),
      make("section", "", {}, make("h3", "", {}, "The row after the softmax"), this.row, this.rest, this.mixing),
      make("section", "", {}, make("div", "bar", {}, make("h3", "", {}, "Query times key, number by number"), make("div", "controls", {}, this.order.root)), make("div", "products-frame", { tabindex: 0, role: "region", "aria-label": "Products" }, this.table)),
    );
    this.none = make("p", "empty", {}, "");
    root.append(make("div", "bar controls", {}, this.heads.root), this.pair, this.pieces, this.none, this.body);
  }

  /** @param {State} state */
  show(state) {
    void this.update(state).catch((error) => isCancelled(error) || this.app.say(error, () => this.show(this.app.state)));
  }

  hide() {
    this.asking.abort();
  }

  /** @param {State} state */
  async update(state) {
    const about = await this.app.about(state.run);
    if (state !== this.app.state) return;
    this.heads.update(about, state);
    if (!about.can.steps) return this.empty("This page holds the weights, not the queries and keys they were made from; clearhead view of the saved run shows every step.");
    if (state.row === null || state.column === null) return this.empty("Choose a pair first: click a cell of the map, or a word of the text and then one of those it reads.");
    const key = JSON.stringify([state.run, state.unit, state.row, state.column]);
    const [rows, columns] = [about.rows, about.columns ?? about.rows];
    if (key !== this.key) this.picked = [tokensOf(rows, state.unit, state.row)[0], tokensOf(columns, state.unit, state.column)[0]];
    this.key = key;
    const [row, column] = this.picked;
    this.asking.abort();
    this.asking = new AbortController();
    const [layer, head] = state.heads[0];
    const { json } = await this.app.source.ask(state.run, "steps", { layer, head, row, column }, this.asking.signal);
    this.drawn = { steps: json, state, about, row, column };
    this.none.hidden = true;
    this.body.hidden = false;
    this.draw(this.drawn);
  }

  /** @param {string} why */
  empty(why) {
    this.drawn = null;
    this.none.textContent = why;
    this.none.hidden = false;
    this.body.hidden = true;
    this.pair.textContent = "";
    this.pieces.replaceChildren();
  }

  /** @param {NonNullable<StepsView["drawn"]>} seen */
  draw({ steps, state, about, row, column }) {
    const [layer, head] = state.heads[0];
    const columns = about.columns ?? about.rows;
    const weight = make("strong", "", {}, steps.masked ? "hidden" : shown(steps.weight ?? NaN, null));
    this.pair.replaceChildren(isolated(nameOf(about.rows, "tokens", row)), " reads ", isolated(nameOf(columns, "tokens", column)), " ", weight, make("span", "fine", {}, `  layer ${about.layers[layer]}, head ${about.heads[head]}${steps.rank ? `, number ${steps.rank} of ${steps.seen} in its row` : ""}`));
    this.pieces.replaceChildren(...this.choices(about.rows, state, "row"), ...this.choices(columns, state, "column"));
    this.chain.replaceChildren(...chain(steps).map(({ what, how, value }) => make("li", "", {}, make("span", "what", {}, what), make("span", "how", {}, how), make("span", "number", {}, value))));
    const items = steps.row.filter(([, weight]) => weight !== 0).map(([at, weight]) => {
      const bar = make("i", "");
      bar.style.width = `${100 * (weight ?? 0)}%`;
      const button = make("button", "target", { type: "button", "aria-pressed": String(at === column) }, isolated(nameOf(columns, "tokens", at)), make("span", "meter", {}, bar), make("span", "number", {}, shown(weight ?? NaN, null)));
      button.addEventListener("click", () => this.pick(1, at));
      return make("li", "", {}, button);
    });
    this.row.replaceChildren(...items);
    const sink = steps.sink_weight === null ? "" : ` The sink takes ${shown(steps.sink_weight, null)} of the row and gives nothing.`;
    this.rest.textContent = `All other tokens together: ${shown(Math.max(0, steps.rest ?? NaN), null)}.${sink}`;
    this.values.textContent = steps.values ? "" : `The weighted values are not here: ${steps.values_why}.`;
    this.mixing.hidden = !steps.values;
    this.products();
    this.mix();
  }

  /** A word of several tokens: which of them. @param {Axis} axis @param {State} state @param {"row" | "column"} side */
  choices(axis, state, side) {
    const place = /** @type {0 | 1} */ (side === "row" ? 0 : 1);
    const [first, end] = tokensOf(axis, state.unit, state[side] ?? 0);
    if (end - first < 2) return [];
    const buttons = Array.from({ length: Math.min(end - first, 12) }, (_, i) => {
      const token = first + i;
      const button = make("button", "", { type: "button", "aria-pressed": String(this.picked[place] === token) }, nameOf(axis, "tokens", token));
      button.addEventListener("click", () => this.pick(place, token));
      return button;
    });
    return [make("span", "fine", {}, place ? "read token" : "reading token"), make("div", "switch", { role: "group", "aria-label": place ? "Token that is read" : "Token that reads" }, ...buttons)];
  }

  /** Another token on one side: one of the same word here, else a pair of its own. @param {0 | 1 | number} place @param {number} token */
  pick(place, token) {
    const { state } = this.app;
    this.picked = place ? [this.picked[0], token] : [token, this.picked[1]];
    if (state.unit === "tokens") this.app.set(place ? { column: token } : { row: token });
    else this.show(state);
  }

  products() {
    if (!this.drawn) return;
    const { q, k, products } = this.drawn.steps;
    this.fill(this.table, ["q", "k", "q × k"], [q, k, products], orderOf(products, this.sorted));
  }

  /** What the pair adds to the output of its row. */
  mix() {
    const values = this.drawn?.steps.values;
    if (values) this.fill(this.mixed, ["v", "weight × v", "output of the row"], values, values[0].map((_, at) => at));
  }

  /** Columns of numbers, each coloured on its own scale. @param {HTMLElement} table @param {string[]} names @param {(number | null)[][]} columns @param {number[]} order */
  fill(table, names, columns, order) {
    const dark = this.app.palette.dark;
    const tops = columns.map((column) => column.reduce((/** @type {number} */ top, value) => Math.max(top, Math.abs(value ?? 0)), 0) || 1);
    const cell = (/** @type {number | null} */ value, /** @type {number} */ top) => {
      const rgb = diverging((value ?? 0) / top, dark);
      const td = make("td", "", {}, number(value === null ? null : Number(value.toPrecision(4))));
      td.style.backgroundColor = css(rgb);
      td.style.color = ink(rgb);
      return td;
    };
    const head = make("thead", "", {}, make("tr", "", {}, ...["", ...names].map((name) => make("th", "", { scope: "col" }, name))));
    const rows = order.map((at) => make("tr", "", {}, make("th", "", { scope: "row" }, String(at)), ...columns.map((column, i) => cell(column[at], tops[i]))));
    table.replaceChildren(head, make("tbody", "", {}, ...rows));
  }

  /** Every number of the pair. */
  numbers() {
    if (!this.drawn) return { columns: [], rows: [] };
    const { steps, about, row, column } = this.drawn;
    const columns = about.columns ?? about.rows;
    const scalars = /** @type {const} */ (["score", "scale", "scaled", "softcap", "capped", "bias", "logit", "lse", "sink", "weight", "rank"]);
    return {
      columns: ["what", "index", "text", "value"],
      rows: [
        ["reads", row, about.rows.tokens[row][0], null], ["is read", column, columns.tokens[column][0], null],
        ...(/** @type {const} */ (["q", "k", "products"]).flatMap((name) => steps[name].map((value, at) => /** @type {(string | number | null)[]} */ ([name, at, null, value])))),
        ...["value", "weight times value", "output of the row"].flatMap((name, i) => (steps.values?.[i] ?? []).map((value, at) => /** @type {(string | number | null)[]} */ ([name, at, null, value]))),
        ...scalars.map((name) => [name, null, null, steps[name]]), ["mask", null, steps.mask, Number(!steps.masked)],
        ...steps.row.map(([at, weight]) => ["row", at, columns.tokens[at][0], weight]), ["rest of the row", null, null, steps.rest],
      ],
    };
  }
}
