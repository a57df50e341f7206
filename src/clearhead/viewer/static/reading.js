// What is read of what: the answers of a source put together for chosen units, and ranked.

import { groupsOf } from "./layout.js";

/** @typedef {import("./source.js").Source} Source */
/** @typedef {import("./source.js").Picture} Picture */
/** @typedef {import("./state.js").State} State */

/**
 * What one group of units reads, or is read by: `which` names the strongest head of each where there are several.
 * @typedef {{units: number[], weights: Float32Array, which: Float32Array | null}} Read
 */

const MOST_OF_A_GROUP = 256; // units that are asked for one by one

/** The matrix that a state looks at. @param {State} state @returns {Picture} */
export const pictureOf = ({ heads, join, unit, leave }) => ({ heads, join, unit, leave });

/** Whether a direction is asked of rows: what the chosen read. @param {State["direction"]} direction */
export const isForward = (direction) => direction === "reads" || direction === "made-of";

/** @param {State["direction"]} direction */
export const isRollout = (direction) => direction === "made-of" || direction === "became";

/** What one does, and what several do. @type {Record<State["direction"], [string, string]>} */
export const VERBS = {
  reads: ["reads", "read"],
  "read-by": ["is read by", "are read by"],
  "made-of": ["is made of", "are made of"],
  became: ["ends up in", "end up in"],
};

/**
 * Each group of the chosen units read as one: what they read is averaged, what is read of them added up.
 * @param {Source} source @param {State} state @param {number[]} chosen @param {AbortSignal} signal
 * @returns {Promise<Read[]>}
 */
export function readGroups(source, state, chosen, signal) {
  const forward = isForward(state.direction);
  const one = async (/** @type {number} */ index) => {
    if (isRollout(state.direction)) {
      const question = { index, unit: state.unit, direction: forward ? "to" : "from" };
      return (await source.ask(state.run, "rollout", question, signal)).arrays;
    }
    const answer = await source.ask(state.run, forward ? "row" : "column", { ...pictureOf(state), index }, signal);
    return answer.arrays;
  };
  return Promise.all(
    groupsOf(chosen).map(async (units) => {
      const answers = await Promise.all(units.slice(0, MOST_OF_A_GROUP).map(one));
      return { units, ...together(answers, forward) };
    }),
  );
}

/**
 * @param {Float32Array[][]} answers  of each unit its weights and, where heads were joined, the strongest
 * @param {boolean} forward
 * @returns {{weights: Float32Array, which: Float32Array | null}}
 */
export function together(answers, forward) {
  if (answers.length === 1) return { weights: answers[0][0], which: answers[0][1] ?? null };
  const weights = new Float32Array(answers[0][0].length).fill(NaN);
  for (const [own] of answers) {
    own.forEach((weight, at) => {
      if (!Number.isNaN(weight)) weights[at] = (Number.isNaN(weights[at]) ? 0 : weights[at]) + weight / (forward ? answers.length : 1);
    });
  }
  return { weights, which: null };
}

/**
 * The units with the largest weights, strongest first; equals in the order of the text.
 * @param {Float32Array[]} columns  of each group; a unit counts with its largest
 * @param {(unit: number) => boolean} listed
 * @param {number} most
 * @returns {number[]}
 */
export function strongest(columns, listed, most) {
  /** @type {{unit: number, weight: number}[]} */
  let best = [];
  let least = 0;
  const count = columns[0]?.length ?? 0;
  for (let unit = 0; unit < count; unit++) {
    let weight = 0;
    for (const column of columns) if (column[unit] > weight) weight = column[unit]; // NaN is never larger
    if (weight <= least || !listed(unit)) continue;
    best.push({ unit, weight });
    if (best.length > 4 * most + 64) {
      best = best.sort((a, b) => b.weight - a.weight || a.unit - b.unit).slice(0, most);
      least = best[best.length - 1].weight;
    }
  }
  return best.sort((a, b) => b.weight - a.weight || a.unit - b.unit).slice(0, most).map(({ unit }) => unit);
}

/** The mean of the groups' weights, for the highlight. @param {Read[]} reads @returns {Float32Array} */
export const meanOf = (reads) => together(reads.map(({ weights }) => [weights]), true).weights;

/** The largest of some weights, hidden ones aside. @param {Float32Array} weights @param {(unit: number) => boolean} listed */
export function topOf(weights, listed) {
  let top = 0;
  weights.forEach((weight, at) => {
    if (weight > top && listed(at)) top = weight;
  });
  return top;
}

/** A weight in as few digits as tell it apart, for under a word: .31, .042, .0008. @param {number} weight */
export function brief(weight) {
  const digits = weight >= 0.0995 ? 2 : Math.min(6, 1 - Math.floor(Math.log10(weight)));
  return weight.toFixed(digits).replace(/^0/, "");
}
