import assert from "node:assert/strict";
import test from "node:test";

import { arc, placed, strongestLinks } from "../../src/clearhead/viewer/static/arcs.js";
import { difference, follow } from "../../src/clearhead/viewer/static/compare.js";
import { Camera } from "../../src/clearhead/viewer/static/camera.js";
import { diverging } from "../../src/clearhead/viewer/static/diverging.js";
import { ranked, toggled } from "../../src/clearhead/viewer/static/heads.js";
import { brief, meanOf, readGroups, strongest, together, topOf } from "../../src/clearhead/viewer/static/reading.js";
import { INITIAL } from "../../src/clearhead/viewer/static/state.js";
import { chain, orderOf } from "../../src/clearhead/viewer/static/steps.js";
import { levelFor } from "../../src/clearhead/viewer/static/thumbs.js";

test("what a group reads is averaged, what is read of it added up; hidden where all of it is", () => {
  const answers = [[Float32Array.of(0.5, NaN, 0.5, NaN)], [Float32Array.of(0.25, 0.75, NaN, NaN)]];
  assert.deepEqual([...together(answers, true).weights], [0.375, 0.375, 0.25, NaN]);
  assert.deepEqual([...together(answers, false).weights], [0.75, 0.75, 0.5, NaN]);
});

test("each direction asks its own question", async () => {
  /** @type {any[]} */
  const asked = [];
  const source = { ask: async (/** @type {any[]} */ ...what) => (asked.push(what), { json: {}, arrays: [Float32Array.of(1)] }) };
  const { signal } = new AbortController();
  for (const direction of ["reads", "read-by", "made-of", "became"]) {
    await readGroups(/** @type {any} */ (source), { ...INITIAL, run: "7", direction: /** @type {any} */ (direction) }, [3], signal);
  }
  assert.deepEqual(asked.map(([, question, args]) => [question, args.index, args.direction]), [["row", 3, undefined], ["column", 3, undefined], ["rollout", 3, "to"], ["rollout", 3, "from"]]);
  assert.ok(asked.every(([run, , , given]) => run === "7" && given === signal));
});

test("the strongest are those of a full sort, in any number, NaN and unlisted aside", () => {
  let seed = 7;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  const weights = Float32Array.from({ length: 5003 }, () => (random() < 0.1 ? NaN : Math.round(random() * 500) / 500));
  const listed = (/** @type {number} */ unit) => unit % 3 !== 0;
  const sorted = [...weights.keys()].filter((at) => weights[at] > 0 && listed(at)).sort((a, b) => weights[b] - weights[a] || a - b);
  for (const most of [1, 10, 97]) assert.deepEqual(strongest([weights], listed, most), sorted.slice(0, most));
  assert.equal(topOf(weights, listed), weights[sorted[0]]);
});

test("of several groups a unit counts with its largest, and is painted with its mean", () => {
  const groups = [Float32Array.of(0.1, 0.6, 0), Float32Array.of(0.5, 0, 0.2)];
  assert.deepEqual(strongest(groups, () => true, 3), [1, 0, 2]);
  const mean = meanOf(groups.map((weights) => ({ units: [0], weights, which: null })));
  assert.deepEqual([...mean].map((weight) => weight.toFixed(3)), ["0.300", "0.300", "0.100"]);
});

test("the number under a word is short and not nothing", () => {
  assert.deepEqual([0.314, 0.0996, 0.0421, 0.00077, 1].map(brief), [".31", ".10", ".042", ".00077", "1.00"].map((text) => text));
});

test("heads are ranked by a measure, those without a value last, equals in their order", () => {
  const heads = /** @type {[number, number][]} */ ([[0, 0], [0, 1], [1, 0], [1, 1]]);
  assert.deepEqual(ranked(heads, [0.2, NaN, 0.9, 0.2]), [2, 0, 3, 1]);
  assert.deepEqual(toggled([[0, 0]], [1, 1]), [[0, 0], [1, 1]]);
  assert.deepEqual(toggled([[0, 0], [1, 1]], [0, 0]), [[1, 1]]);
  assert.deepEqual(toggled([[0, 0]], [0, 0]), [[0, 0]]);
  assert.deepEqual([1, 64, 65, 131072].map((size) => levelFor(size, 1)), [0, 0, 1, 11]);
});

test("arcs are the strongest links; to the left above the line, to the right below it", () => {
  const links = strongestLinks(Float32Array.of(0.1, 0.9, NaN, 0.5), 2, (row, column) => row !== column || row === 1, 2);
  assert.deepEqual(links, [{ from: 0, to: 1, weight: Math.fround(0.9) }, { from: 1, to: 1, weight: 0.5 }]);
  const peak = (/** @type {string} */ d) => Number(/C\S+ (\S+)/.exec(d)?.[1]);
  assert.ok(peak(arc(100, 20, 50, 80)) < 50 && peak(arc(20, 100, 50, 80)) > 80 && peak(arc(20, 20, 50, 80)) < 50);
  const { middles, length } = placed([10, 30]);
  assert.ok(middles[0] < middles[1] && middles[1] + 15 < length);
});

test("the difference is hidden only where both are", () => {
  assert.deepEqual([...difference(Float32Array.of(0.5, NaN, 0.25, NaN), Float32Array.of(0.25, 0.5, NaN, NaN))], [0.25, -0.5, 0.25, NaN]);
});

test("nothing is the paper, more and less are different hues of equal depth order", () => {
  for (const dark of [false, true]) {
    assert.deepEqual(diverging(0, dark), diverging(-0, dark));
    const [red, , blue] = diverging(1, dark);
    const [coldRed, , coldBlue] = diverging(-1, dark);
    assert.ok(red > blue && coldBlue > coldRed);
  }
});

test("a camera that follows looks at the same part of a matrix of another size", () => {
  const [one, other] = [new Camera(100, 100), new Camera(200, 50)];
  for (const camera of [one, other]) {
    camera.resize(300, 300);
    camera.fit();
  }
  one.place = { x: 50, y: 50, zoom: 12 };
  follow(one, other);
  assert.deepEqual([other.x, other.y, other.zoom], [25, 100, 6]);
});

const STEPS = { q: [1, 2], k: [3, -1], products: [3, -2], score: 1, scale: 0.5, scaled: 0.5, softcap: null, capped: 0.5, bias: null, masked: false, mask: null, logit: 0.5, lse: 1.5, sink: null, sink_weight: null, weight: Math.exp(-1), rank: 2, seen: 3, row: [], rest: 0, values: null, values_why: "" };

test("the chain has a line for each step that there is", () => {
  assert.deepEqual(chain(/** @type {any} */ (STEPS)).map(({ what, value }) => [what, value]), [["score", "1"], ["scaled", "0.5"], ["mask", "may be read"], ["logit", "0.5"], ["log-sum-exp", "1.5"], ["weight", "0.367879"]]);
  const all = chain(/** @type {any} */ ({ ...STEPS, softcap: 30, capped: 0.49, bias: -0.25, sink: 0.1, mask: "causal()" }));
  assert.deepEqual(all.map(({ what }) => what), ["score", "scaled", "soft-capped", "bias", "mask", "logit", "log-sum-exp", "weight"]);
  assert.equal(all.find(({ what }) => what === "bias")?.value, "−0.25");
  const masked = chain(/** @type {any} */ ({ ...STEPS, masked: true, logit: null, mask: "causal()" }));
  assert.deepEqual(masked.slice(-2).map(({ value }) => value), ["hidden", "0"]);
});

test("products are sorted by their size, whatever their sign", () => {
  assert.deepEqual(orderOf([1, -3, 2], true), [1, 2, 0]);
  assert.deepEqual(orderOf([1, -3, 2], false), [0, 1, 2]);
});
