// What is said beside the map: the pinned row and column as lists, the chosen part, what was left out.

import { bdi, make } from "./dom.js";
import { brief, digits } from "./tint.js";

const LISTED = 10;
const SHARE = 0.9; // of a row's weight, that some number of keys hold

/**
 * The largest of a profile, largest first; what the mask hides is none of them.
 * @param {Float32Array} profile
 * @param {number} most
 * @returns {number[]} indices
 */
export function largest(profile, most) {
  /** @type {number[]} */
  const best = [];
  for (let at = 0; at < profile.length; at++) {
    if (!(profile[at] > 0)) continue;
    if (best.length === most && profile[at] <= profile[best[most - 1]]) continue;
    let place = best.length;
    while (place && profile[best[place - 1]] < profile[at]) place--;
    best.splice(place, 0, at);
    if (best.length > most) best.pop();
  }
  return best;
}

/**
 * How many of the largest hold a share of the sum.
 * @param {Float32Array} profile
 * @param {number} share
 */
export function holders(profile, share) {
  const sorted = profile.filter((weight) => weight > 0).sort().reverse();
  const sum = sorted.reduce((a, b) => a + b, 0);
  let held = 0;
  let count = 0;
  while (count < sorted.length && held < share * sum) held += sorted[count++];
  return count;
}

/**
 * A weight with all its digits: the first four as they are, the others softer.
 * @param {number} weight
 * @param {number | null} decimals  to which the weights of this run are known; null: exactly
 */
export function number(weight, decimals) {
  if (Number.isNaN(weight)) return make("strong", "", {}, "hidden");
  const all = decimals === null ? digits(weight) : weight.toFixed(decimals);
  const match = /^(-?(?:0\.0*|0*)?\d(?:\.?\d){0,3})(.*)$/.exec(all);
  const [, head, tail] = match ?? ["", all, ""];
  const [rest, exponent] = tail.split(/(?=e)/);
  return make("strong", "number", {}, head, tail ? make("span", "tail", {}, rest.startsWith("e") ? "" : rest) : "", rest.startsWith("e") ? rest : (exponent ?? ""));
}

/**
 * The strongest of a pinned row or column, as a list that leads to them.
 * @param {object} given
 * @param {string} given.name  of the pinned
 * @param {string} given.verb  "reads" or "is read by"
 * @param {Float32Array | null} given.profile
 * @param {(index: number) => string} given.nameOf
 * @param {number | null} given.decimals
 * @param {(index: number) => void} given.go
 * @param {() => void} given.unpin
 * @param {HTMLElement[]} given.more  buttons below
 */
export function profileSection({ name, verb, profile, nameOf, decimals, go, unpin, more }) {
  const close = make("button", "quiet", { type: "button", "aria-label": "Unpin" }, "×");
  close.addEventListener("click", unpin);
  const head = make("h3", "", {}, bdi(name), ` ${verb}`);
  const section = make("section", "pinned", { "aria-label": `${name} ${verb}` }, make("div", "heading", {}, head, close));
  if (!profile) {
    section.append(make("p", "fine", {}, "…"));
    return section;
  }
  const best = largest(profile, LISTED);
  const top = best.length ? profile[best[0]] : 1;
  const rows = best.map((index) => {
    const meter = make("i", "");
    meter.style.width = `${(100 * profile[index]) / top}%`;
    const button = make("button", "target", { type: "button", title: digits(profile[index]) }, bdi(nameOf(index)), make("span", "meter", {}, meter), make("span", "weight", {}, shown(profile[index], decimals)), make("span", "where", {}, index.toLocaleString("en")));
    button.addEventListener("click", () => go(index));
    return make("li", "", {}, button);
  });
  const visible = profile.reduce((count, weight) => count + Number(!Number.isNaN(weight)), 0);
  const held = holders(profile, SHARE);
  const said = verb === "reads" ? `${percent(SHARE)} of its attention is on ${plural(held, "column")} of ${visible.toLocaleString("en")}.` : `It receives ${brief(profile.reduce((sum, weight) => sum + (weight || 0), 0))} in all, from ${visible.toLocaleString("en")} rows.`;
  section.append(make("ol", "targets", {}, ...rows), make("p", "fine", {}, best.length ? said : "Nothing."), make("div", "bar", {}, ...more));
  return section;
}

/** @param {number} weight @param {number | null} decimals */
const shown = (weight, decimals) => (decimals === null ? brief(weight, 4) : weight.toFixed(decimals));

/** @param {number} share */
export const percent = (share) => `${Number((100 * share).toPrecision(3))} %`;

/** @param {number} count @param {string} noun */
export const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

/**
 * The weight of a chosen part.
 * @param {object} given
 * @param {[number, number, number, number]} given.span
 * @param {(index: number) => string} given.rowName
 * @param {(index: number) => string} given.columnName
 * @param {{mean: number, most: number, row_of_most: number} | string | null} given.mass  a text: why it is not known
 * @param {() => void} given.zoom
 * @param {() => void} given.close
 */
export function spanSection({ span: [a, b, c, d], rowName, columnName, mass, zoom, close }) {
  const put = make("button", "quiet", { type: "button", "aria-label": "Drop the chosen part" }, "×");
  put.addEventListener("click", close);
  const enlarge = make("button", "chip", { type: "button" }, "zoom to it (z)");
  enlarge.addEventListener("click", zoom);
  const ends = (/** @type {number} */ from, /** @type {number} */ to, /** @type {(index: number) => string} */ name) =>
    to - from === 1 ? [bdi(name(from))] : [bdi(name(from)), " … ", bdi(name(to - 1))];
  const section = make("section", "span", { "aria-label": "The chosen part" });
  section.append(make("div", "heading", {}, make("h3", "", {}, `${plural(b - a, "row")} × ${plural(d - c, "column")}`), put));
  section.append(make("p", "", {}, ...ends(a, b, rowName), b - a === 1 ? " reads " : " read ", ...ends(c, d, columnName)));
  if (mass === null) section.append(make("p", "fine", {}, "…"));
  else if (typeof mass === "string") section.append(make("p", "fine", {}, mass));
  else {
    const mean = make("strong", "number", {}, percent(mass.mean));
    section.append(make("p", "", {}, mean, b - a === 1 ? " of its attention." : " of their attention, on average."));
    if (b - a > 1) section.append(make("p", "fine", {}, `Most: ${percent(mass.most)}, in row ${mass.row_of_most.toLocaleString("en")} `, bdi(rowName(mass.row_of_most))));
  }
  section.append(make("div", "bar", {}, enlarge));
  return section;
}

/**
 * What was left out, and how much weight it held.
 * @param {object} given
 * @param {{mean: number, most: number, row_of_most: number, columns: number[], sinks: [number, number][]} | null} given.removed
 * @param {(index: number) => string} given.rowName
 * @param {(index: number) => string} given.columnName
 */
export function removedSection({ removed, rowName, columnName }) {
  const section = make("section", "left-out", { "aria-label": "Left out" }, make("div", "heading", {}, make("h3", "", {}, make("strong", "", {}, "Left out"))));
  if (!removed) {
    section.append(make("p", "fine", {}, "…"));
    return section;
  }
  const { mean, most, row_of_most, columns, sinks } = removed;
  const some = columns.slice(0, 12);
  const names = some.flatMap((index, at) => [at ? ", " : "", bdi(columnName(index))]);
  section.append(
    make("p", "", {}, make("strong", "number", {}, percent(mean)), " of each row’s attention on average; what is left of a row was made to sum to one."),
    make("p", "fine", {}, `Most: ${percent(most)}, in row ${row_of_most.toLocaleString("en")} `, bdi(rowName(row_of_most))),
    make("p", "fine", {}, `${plural(columns.length, "column")}: `, ...names, columns.length > some.length ? ", …" : ""),
  );
  if (sinks.length) {
    const list = sinks.slice(0, 6).flatMap(([index, share], at) => [at ? ", " : "", bdi(columnName(index)), ` ${percent(share)}`]);
    section.append(make("p", "fine", {}, "Sinks, and the share of all attention that each receives: ", ...list));
  }
  return section;
}

/**
 * What can be done with the map, while nothing is pinned.
 * @param {string} heads
 * @param {import("./source.js").About} about
 */
export function helpSection(heads, { notes, decimals }) {
  const line = (/** @type {string} */ key, /** @type {string} */ what) => make("div", "", {}, make("dt", "", {}, key), make("dd", "", {}, what));
  const keys = make(
    "dl",
    "keys",
    {},
    line("drag", "move"),
    line("wheel, pinch, + −", "zoom"),
    line("double-click", "zoom in"),
    line("click, Enter", "pin a row"),
    line("click a name above", "pin a column"),
    line("shift and drag", "choose a part"),
    line("[ ]", "head before, after"),
    line("0", "the whole"),
  );
  const exact = decimals === null ? "Every number is exact." : `Weights are rounded to ${decimals} decimals.`;
  const said = [...notes.map((note) => `${note[0].toUpperCase()}${note.slice(1)}.`), exact];
  return make("section", "", { "aria-label": "How to look" }, make("h3", "", {}, make("strong", "", {}, heads)), keys, make("p", "fine", {}, said.join(" ")));
}
