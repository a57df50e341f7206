// Beside the text: a ranked list of what is read, what the list leaves out, and where to go on from there.

import { make, Switch } from "./dom.js";
import { isolated, percent, shown } from "./labels.js";
import { isSpecial } from "./layout.js";
import { Legend } from "./legend.js";
import { VERBS, isForward, isRollout, strongest } from "./reading.js";
import { nameOf } from "./units.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./source.js").About} About */
/** @typedef {import("./source.js").Axis} Axis */
/** @typedef {import("./state.js").State} State */
/** @typedef {import("./reading.js").Read} Read */

/**
 * What is to be listed. `own` is the mean row of the one chosen unit, where there is one.
 * @typedef {{state: State, about: About, reads: Read[], listed: (unit: number) => boolean, scale: import("./tint.js").Scale, own: Float32Array | null, passing: boolean}} Reading
 */

const LISTED = 10;
const COMPARED = 4; // groups side by side

/**
 * The axis of the units that are asked about, or of those that are painted.
 * @param {About} about @param {State} state @param {boolean} asked @returns {Axis}
 */
export const axisOf = (about, state, asked) => (asked === isForward(state.direction) ? about.rows : (about.columns ?? about.rows));

/** What a group of chosen units is called. @param {Axis} axis @param {State} state @param {number[]} units */
export function groupName(axis, state, units) {
  const first = nameOf(axis, state.unit, units[0]);
  return units.length === 1 ? first : `${first} … ${nameOf(axis, state.unit, units[units.length - 1])}`;
}

export class ReadingPanel {
  /** @param {App} app @param {(unit: number) => void} reach  bring a listed unit into sight */
  constructor(app, reach) {
    this.app = app;
    this.reach = reach;
    const turn = (/** @type {State["direction"]} */ direction) => app.set({ direction });
    this.direction = new Switch("Direction", [["reads", "reads"], ["read-by", "is read by"]], turn);
    this.rollout = new Switch("Through all layers", [
      ["made-of", "is made of", "Rollout: what a word's place in the last layer is made of, through all layers"],
      ["became", "ends up in", "Rollout: in which places of the last layer a word ends up"],
    ], turn);
    this.title = make("h2", "whose", { id: "list-title" });
    this.list = make("ol", "list", { id: "list", "aria-labelledby": "list-title" });
    this.links = make("div", "bar onward");
    this.rest = make("p", "fine rest", { id: "rest" });
    this.legend = new Legend();
    this.boxes = /** @type {const} */ (["special", "self"]).map((name) => {
      const box = make("input", "", { type: "checkbox", id: name });
      box.addEventListener("change", () => app.set({ listed: { ...app.state.listed, [name]: box.checked } }));
      return { name, box };
    });
    const [special, self] = this.boxes.map(({ box }) => box);
    const options = make("div", "bar options", {}, make("label", "", {}, special, " special tokens"), make("label", "", {}, self, " itself"));
    this.root = make("aside", "panel beside", { "aria-labelledby": "list-title" }, make("div", "bar controls", {}, this.direction.root, this.rollout.root), this.title, this.list, this.links, this.rest, this.legend.root, options);
  }

  /** @param {Reading} reading */
  draw(reading) {
    const { state, about, scale } = reading;
    this.rollout.root.hidden = !about.can.rollout;
    this.direction.update(/** @type {any} */ (state.direction));
    this.rollout.update(/** @type {any} */ (state.direction));
    for (const { name, box } of this.boxes) box.checked = state.listed[name];
    this.legend.update(scale, this.app.palette, false, "");
    this.fill(reading);
    this.onward(reading);
    this.rest.textContent = this.left(reading);
  }

  /** @param {Reading} reading */
  fill({ state, about, reads, listed, passing }) {
    const groups = reads.slice(0, COMPARED);
    const names = groups.map(({ units }) => groupName(axisOf(about, state, true), state, units));
    const many = reads.length > 1 ? reads.length : (reads[0]?.units.length ?? 0);
    const more = reads.length > COMPARED ? ` and ${reads.length - COMPARED} more` : "";
    const verb = VERBS[state.direction][many > 1 ? 1 : 0];
    const title = names.flatMap((name, at) => [at ? " and " : "", isolated(name)]);
    this.title.replaceChildren(...(names.length ? [...title, `${more} ${verb}`] : ["No word is chosen"]));
    const units = strongest(reads.map(({ weights }) => weights), listed, LISTED);
    const items = units.map((unit) => this.item(state, about, groups, unit));
    this.list.replaceChildren(...items);
    this.list.classList.toggle("compared", groups.length > 1);
    if (groups.length > 1) this.list.prepend(make("li", "heading", { "aria-hidden": "true" }, make("span", ""), ...names.map(isolated)));
    if (!passing && names.length) this.app.announce(`${names.join(" and ")} ${verb}: ${items.slice(0, 3).map((item) => item.innerText.replace(/\s+/g, " ")).join(", ")}`);
  }

  /** @param {State} state @param {About} about @param {Read[]} groups @param {number} unit */
  item(state, about, groups, unit) {
    const forward = isForward(state.direction);
    const [pinned, against] = forward ? [state.column, state.row] : [state.row, state.column];
    const button = make("button", "target", { type: "button", "aria-pressed": String(pinned === unit && against !== null), "data-unit": unit });
    button.append(isolated(nameOf(axisOf(about, state, false), state.unit, unit)));
    for (const { weights } of groups) {
      const bar = make("i", "");
      bar.style.width = `${100 * Math.min(1, weights[unit] || 0)}%`;
      button.append(make("span", "meter", {}, bar), make("span", "number", {}, shown(weights[unit], about.decimals)));
    }
    const which = groups.length === 1 ? groups[0].which?.[unit] : undefined;
    const head = which === undefined || Number.isNaN(which) ? null : state.heads[which];
    if (head) {
      const [layer, number] = [about.layers[head[0]], about.heads[head[1]]];
      button.append(make("span", "where", { title: `layer ${layer}, head ${number}` }, `${layer}.${number}`));
    }
    button.addEventListener("click", () => {
      const words = groups.flatMap(({ units }) => units);
      this.reach(unit);
      this.app.set(forward ? { words, row: words[0], column: unit } : { words, row: unit, column: words[0] });
    });
    return make("li", "", {}, button);
  }

  /** Where to go on from a pair: its map, its heads, its numbers. @param {Reading} reading */
  onward({ state, about, reads, passing }) {
    const { row, column } = state;
    this.links.replaceChildren();
    if (row === null || column === null || isRollout(state.direction) || passing) return;
    const at = reads[0]?.which?.[isForward(state.direction) ? column : row];
    const heads = at === undefined || Number.isNaN(at) ? state.heads : [state.heads[at]];
    const link = (/** @type {string} */ word, /** @type {Partial<State>} */ change) => {
      const button = make("button", "chip", { type: "button" }, word);
      button.addEventListener("click", () => this.app.set(change));
      this.links.append(button);
    };
    link("in the map", { view: "map", heads, camera: null });
    link("in every head", { view: "heads", sort: "this link" });
    if (about.can.steps) link("step by step", { view: "steps", heads: heads.slice(0, 1) });
  }

  /** What the list leaves out, and how much that is. @param {Reading} reading @returns {string} */
  left({ state, about, reads, own }) {
    if (isRollout(state.direction)) {
      return "Attention rollout: through all layers, the heads of each averaged, half of each layer passed on unchanged.";
    }
    const count = state.heads.length;
    const named = reads.length === 1 && reads[0].which;
    const over = count < 2 ? "" : named ? `each weight is from the head named beside it, the strongest of ${count}` : `each weight is ${state.join === "max" ? "the largest" : "the mean"} of ${count} heads`;
    const chosen = reads[0]?.units[0];
    if (!own || chosen === undefined) return over && `${over[0].toUpperCase()}${over.slice(1)}.`;
    let special = 0;
    own.forEach((weight, at) => {
      if (weight > 0 && at !== chosen && isSpecial(about.columns ?? about.rows, state.unit, at)) special += weight;
    });
    const whose = isSpecial(about.rows, state.unit, chosen) ? "This token" : `This ${state.unit.slice(0, -1)}`;
    const itself = about.columns ? "" : ` and ${percent(own[chosen] || 0)} on itself`;
    return `${whose} spends ${percent(special)} of its attention on special tokens${itself}${over && `; ${over}`}.`;
  }
}
