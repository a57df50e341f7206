import assert from "node:assert/strict";
import test from "node:test";
import { gzipSync } from "node:zlib";

import { Embedded, bytesOf, sideOf } from "../../src/clearhead/viewer/static/embedded.js";

// Three words of four tokens, `un` and `done` one word; 2 layers of 1 head; the mask is causal.
const HIDDEN = 65535;
const HEADS = [
  [[10000, HIDDEN, HIDDEN, HIDDEN], [2500, 7500, HIDDEN, HIDDEN], [1000, 3000, 6000, HIDDEN], [5000, 1000, 2000, 2000]],
  [[10000, HIDDEN, HIDDEN, HIDDEN], [5000, 5000, HIDDEN, HIDDEN], [2000, 2000, 6000, HIDDEN], [0, 4000, 1000, 5000]],
];
const ROLLOUT = [[50000, 0, 0, 0], [10000, 40000, 0, 0], [5000, 5000, 40000, 0], [10000, 10000, 10000, 20000]];
const AXIS = {
  text: "the undone",
  tokens: [["[CLS]", "[CLS]", 0, 0, 0, true], ["the", "the", 0, 3, 1, false], ["un", "un", 4, 6, 2, false], ["done", "##done", 6, 10, 2, false]],
  words: [["[CLS]", 0, 0, [0], true], ["the", 0, 3, [1], false], ["undone", 4, 10, [2, 3], false]],
  sentences: [[0, 1], [1, 4]],
  documents: [[0, 4]],
};
const ABOUT = { rows: AXIS, columns: null, layers: [0, 1], heads: [0], decimals: 4, model: "m", title: "t", text: AXIS.text, can: {} };

/** @param {number[]} values */
function packed(values) {
  const bytes = new Uint8Array(2 * values.length);
  values.forEach((value, at) => {
    bytes[at] = value & 255;
    bytes[values.length + at] = value >> 8;
  });
  return base85(gzipSync(bytes));
}

const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;.=>?@^_`{|}~";

/** @param {Uint8Array} bytes */
function base85(bytes) {
  const whole = new Uint8Array(4 * Math.ceil(bytes.length / 4));
  whole.set(bytes);
  let text = "";
  for (let at = 0; at < whole.length; at += 4) {
    let value = new DataView(whole.buffer).getUint32(at);
    let group = "";
    for (let i = 0; i < 5; i++, value = Math.floor(value / 85)) group = DIGITS[value % 85] + group;
    text += group;
  }
  return text.slice(0, text.length - (whole.length - bytes.length));
}

test("bytes of any number come back from five characters for four", () => {
  for (const size of [0, 1, 2, 3, 4, 5, 7, 64, 97]) {
    const bytes = Uint8Array.from({ length: size }, (_, at) => (at * 89 + 255) & 255);
    assert.deepEqual([...bytesOf(base85(bytes))], [...bytes]);
  }
});

const page = () =>
  Embedded.open(/** @type {any} */ ({
    about: ABOUT, decimals: 4, weights: packed([...HEADS, ROLLOUT].flat(2)), rollout: 2e-5,
    measures: { previous: "mass on the token before" }, values: [[0.25, null]],
    sinks: { share: 0.05, times: 4, rows: 8, rule: "" },
  }));

/** @param {ArrayLike<number>} given @param {number[]} wanted */
function near(given, wanted) {
  assert.equal(given.length, wanted.length);
  wanted.forEach((value, at) => (Number.isNaN(value) ? assert.ok(Number.isNaN(given[at]), `${at}`) : assert.ok(Math.abs(given[at] - value) < 1e-6, `${at}: ${given[at]} is not ${value}`)));
}

/** @param {string} question @param {object} args */
const ask = async (question, args) => (await page()).ask("page", question, args);

test("a row is what was stored, and what the mask hides is no number", async () => {
  const { arrays } = await ask("row", { heads: [[0, 0]], index: 2 });
  near(arrays[0], [0.1, 0.3, 0.6, NaN]);
});

test("the rows of a word are averaged, its columns summed", async () => {
  const { arrays } = await ask("row", { heads: [[0, 0]], unit: "words", index: 2 });
  near(arrays[0], [0.3, 0.2, (0.6 + 0.4) / 2]);
  near((await ask("column", { heads: [[0, 0]], unit: "words", index: 2 })).arrays[0], [NaN, NaN, 0.5]);
});

test("heads are joined by their mean, or by the largest and whose it is", async () => {
  const heads = [[0, 0], [1, 0]];
  near((await ask("row", { heads, index: 3 })).arrays[0], [0.25, 0.25, 0.15, 0.35]);
  const { arrays } = await ask("row", { heads, join: "max", index: 3 });
  near(arrays[0], [0.5, 0.4, 0.2, 0.5]);
  near(arrays[1], [0, 1, 0, 1]);
});

test("what is left out is hidden, and what is left of a row sums to one", async () => {
  const leave = { special: true, sinks: false, columns: [1] };
  const { json, arrays } = await ask("row", { heads: [[0, 0]], leave, index: 3 });
  near(arrays[0], [NaN, NaN, 0.5, 0.5]);
  assert.ok(Math.abs(json.removed - 0.6) < 1e-6);
  const removed = (await ask("removed", { heads: [[0, 0]], leave })).json;
  assert.deepEqual(removed.columns, [0, 1]);
  assert.equal(removed.row_of_most, 0);
  assert.ok(Math.abs(removed.mean - (1 + 1 + 0.4 + 0.6) / 4) < 1e-6);
});

test("a tile pools the cells that are not hidden, those at the edge what they have", async () => {
  const part = { heads: [[0, 0]], level: 1, row: 0, column: 0 };
  const most = await ask("tile", { ...part, pool: "max" });
  assert.deepEqual([most.json.rows, most.json.columns, most.json.done], [2, 2, true]);
  near(most.arrays[0], [1, NaN, 0.5, 0.6]);
  near((await ask("tile", { ...part, pool: "mean" })).arrays[0], [(1 + 0.25 + 0.75) / 3, NaN, (0.1 + 0.3 + 0.5 + 0.1) / 4, (0.6 + 0.2 + 0.2) / 3]);
});

test("a window is a part of the matrix; one that is too large is refused", async () => {
  const { arrays } = await ask("window", { heads: [[1, 0]], rows: [1, 3], columns: [1, 4] });
  near(arrays[0], [0.5, NaN, NaN, 0.2, 0.6, NaN]);
  await assert.rejects(ask("window", { heads: [[1, 0]], rows: [0, 2000], columns: [0, 2000] }), /must be at most/);
});

test("one cell in every head, hidden where the mask hides it", async () => {
  near((await ask("across", { unit: "words", row: 2, column: 1 })).arrays[0], [0.2, 0.3]);
  near((await ask("across", { unit: "tokens", row: 0, column: 1 })).arrays[0], [NaN, NaN]);
});

test("the rollout is the stored one, between the units asked for", async () => {
  near((await ask("rollout", { unit: "tokens", index: 3, direction: "to" })).arrays[0], [0.2, 0.2, 0.2, 0.4]);
  near((await ask("rollout", { unit: "words", index: 2, direction: "to" })).arrays[0], [0.15, 0.15, (0.8 + 0.6) / 2]);
  near((await ask("rollout", { unit: "words", index: 1, direction: "from" })).arrays[0], [0, 0.8, 0.15]);
});

test("a measure without a value is no number", async () => {
  const { json, arrays } = await ask("heads", {});
  assert.deepEqual(json.measures, { previous: "mass on the token before" });
  near(arrays[0], [0.25, NaN]);
});

test("what only a model could answer is refused in a sentence", async () => {
  await assert.rejects(ask("steps", {}), /holds weights, not what steps would need/);
  await assert.rejects(ask("toString", {}), /holds weights/);
  await assert.rejects((await page()).read(), /holds one run and no model/);
});

test("a token stands for the word that reads by it, and is read as its own word", () => {
  const twice = { ...AXIS, tokens: AXIS.tokens, words: [["[CLS]", 0, 0, [0], true], ["the", 0, 3, [], false], ["undone", 4, 10, [2], false]] };
  assert.deepEqual([...sideOf(/** @type {any} */ (twice), "words", true).label], [0, -1, 2, -1]);
  assert.deepEqual([...sideOf(/** @type {any} */ (twice), "words", false).label], [0, 1, 2, 2]);
  assert.deepEqual([...sideOf(/** @type {any} */ (AXIS), "sentences", true).sizes], [1, 3]);
});
