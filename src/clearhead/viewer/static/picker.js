// Which heads are looked at: a grid of layers and heads.

import { make, Switch } from "./dom.js";

/** @typedef {import("./state.js").Head} Head */

export class HeadPicker {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    this.app = app;
    this.button = make("button", "chip heads-button", { type: "button", "aria-haspopup": "dialog", "aria-expanded": "false" });
    const step = (/** @type {string} */ sign, /** @type {string} */ label, /** @type {number} */ by) => {
      const button = make("button", "quiet step", { type: "button", "aria-label": label, title: label }, sign);
      button.addEventListener("click", () => this.walk(by));
      return button;
    };
    this.grid = make("div", "grid", { role: "group", "aria-label": "Heads: a row for each layer. Arrow keys move, Enter chooses one, Shift and Enter adds or removes one." });
    this.join = new Switch("Several heads", [["mean", "mean"], ["max", "largest"]], (join) => app.set({ join }));
    const all = make("button", "chip", { type: "button" }, "all heads");
    all.addEventListener("click", () => this.chooseAll());
    this.foot = make("div", "bar", {}, all, this.join.root, make("span", "fine", {}, "Shift adds a head; a layer’s number takes all of it."));
    this.panel = make("div", "panel picker", { role: "dialog", "aria-label": "Heads", hidden: true }, this.grid, this.foot);
    this.root = make("div", "heads-picker", {}, step("‹", "Previous head", -1), this.button, step("›", "Next head", 1), this.panel);
    this.button.addEventListener("click", () => this.toggle(Boolean(this.panel.hidden)));
    this.root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || this.panel.hidden) return;
      this.toggle(false);
      this.button.focus();
      event.stopPropagation();
    });
    this.root.addEventListener("focusout", (event) => {
      if (event.relatedTarget && !this.root.contains(/** @type {Node} */ (event.relatedTarget))) this.toggle(false);
    });
    this.grid.addEventListener("keydown", (event) => this.arrows(event));
    /** @type {HTMLButtonElement[][]} */
    this.cells = [];
    this.built = "";
  }

  /** @param {boolean} open */
  toggle(open) {
    this.panel.hidden = !open;
    this.button.setAttribute("aria-expanded", String(open));
    const [layer, head] = this.app.state.heads[0];
    if (open) this.cells[layer]?.[head]?.focus();
  }

  /**
   * @param {import("./source.js").About} about
   * @param {import("./state.js").State} state
   */
  update(about, state) {
    this.about = about;
    const names = `${about.layers} ${about.heads}`;
    if (names !== this.built) this.build(about);
    this.built = names;
    const chosen = new Set(state.heads.map(String));
    const [first] = state.heads;
    this.cells.forEach((row, layer) =>
      row.forEach((cell, head) => {
        cell.setAttribute("aria-pressed", String(chosen.has(String([layer, head]))));
        cell.tabIndex = layer === first[0] && head === first[1] ? 0 : -1;
      }),
    );
    this.button.textContent = headsName(about, state);
    this.join.update(state.join);
    this.join.root.hidden = state.heads.length < 2;
  }

  /** @param {import("./source.js").About} about */
  build({ layers, heads }) {
    this.grid.style.gridTemplateColumns = `auto repeat(${heads.length}, minmax(14px, 26px))`;
    this.cells = layers.map((layer, l) =>
      heads.map((head, h) => {
        const cell = make("button", "", { type: "button", "aria-label": `Layer ${layer} head ${head}`, title: `${layer}.${head}` });
        cell.addEventListener("click", (event) => this.choose([l, h], event.shiftKey || event.ctrlKey || event.metaKey));
        return cell;
      }),
    );
    const sparse = Math.max(1, Math.ceil(heads.length / 16));
    const tops = heads.map((head, h) => make("span", "", {}, h % sparse ? "" : String(head)));
    this.grid.replaceChildren(make("span", "", {}, ""), ...tops);
    layers.forEach((layer, l) => {
      const name = make("button", "quiet", { type: "button", tabindex: -1, "aria-label": `All of layer ${layer}`, title: `All of layer ${layer}` }, String(layer));
      name.addEventListener("click", () => this.app.set({ heads: heads.map((_, h) => /** @type {Head} */ ([l, h])) }));
      this.grid.append(name, ...this.cells[l]);
    });
  }

  /**
   * @param {Head} head
   * @param {boolean} adding
   */
  choose(head, adding) {
    const { heads } = this.app.state;
    if (!adding) {
      this.app.set({ heads: [head] });
      return;
    }
    const others = heads.filter((other) => String(other) !== String(head));
    if (others.length === heads.length) this.app.set({ heads: [...heads, head] });
    else if (others.length) this.app.set({ heads: others });
  }

  chooseAll() {
    if (!this.about) return;
    const { layers, heads } = this.about;
    this.app.set({ heads: layers.flatMap((_, l) => heads.map((_, h) => /** @type {Head} */ ([l, h]))) });
  }

  /** The head before or after, through all layers. @param {number} by */
  walk(by) {
    if (!this.about) return;
    const { layers, heads } = this.about;
    const [layer, head] = this.app.state.heads[0];
    const all = layers.length * heads.length;
    const next = (layer * heads.length + head + by + all) % all;
    this.app.set({ heads: [[Math.floor(next / heads.length), next % heads.length]] });
  }

  /** @param {KeyboardEvent} event */
  arrows(event) {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step) return;
    const layer = this.cells.findIndex((row) => row.includes(/** @type {HTMLButtonElement} */ (event.target)));
    if (layer < 0) return;
    const head = this.cells[layer].indexOf(/** @type {HTMLButtonElement} */ (event.target));
    this.cells[layer + step[0]]?.[head + step[1]]?.focus();
    event.preventDefault();
  }
}

/**
 * The chosen heads in words, by the model's own numbers.
 * @param {import("./source.js").About} about
 * @param {Pick<import("./state.js").State, "heads" | "join">} state
 */
export function headsName(about, { heads, join }) {
  const { layers, heads: names } = about;
  if (heads.length === 1) return `Layer ${layers[heads[0][0]]} · head ${names[heads[0][1]]}`;
  const how = join === "mean" ? "Mean" : "Largest";
  if (heads.length === layers.length * names.length) return `${how} of all ${heads.length} heads`;
  const [layer] = heads[0];
  const one = heads.length === names.length && heads.every((head) => head[0] === layer);
  if (one) return `${how} of layer ${layers[layer]}`;
  const list = heads.slice(0, 3).map(([l, h]) => `${layers[l]}.${names[h]}`).join(", ");
  return `${how} of ${heads.length} heads: ${list}${heads.length > 3 ? ", …" : ""}`;
}
