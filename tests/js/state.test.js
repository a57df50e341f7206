import assert from "node:assert/strict";
import test from "node:test";

import { INITIAL, Store, fromHash, toHash } from "../../src/clearhead/viewer/static/state.js";

/** @type {import("../../src/clearhead/viewer/static/state.js").State} */
const EVERYTHING = {
  run: "a&b=c #1:2",
  view: "steps",
  heads: [[2, 3], [5, 7]],
  join: "max",
  unit: "words",
  pool: "max",
  scale: "log",
  leave: { special: true, sinks: true, columns: [11, 13] },
  camera: { x: 17.25, y: 19.5, zoom: 0.0078125 },
  row: 0,
  column: 23,
  span: [2, 3, 5, 7],
  words: [29, 0],
  direction: "became",
  listed: { special: true, self: true },
  arcs: "on",
  other: { run: "x:y", heads: [[0, 11]] },
  sort: "entropy",
  theme: "dark",
};

test("every part of a state comes back from its link", () => {
  for (const key of Object.keys(INITIAL)) assert.notDeepEqual(EVERYTHING[key], INITIAL[key], `${key} is not put to the test`);
  assert.deepEqual(fromHash(`#${toHash(EVERYTHING)}`), { state: EVERYTHING, wrong: [] });
});

test("a part that is emptied comes back empty, whatever the base", () => {
  for (const key of Object.keys(INITIAL)) {
    const state = { ...EVERYTHING, [key]: INITIAL[key] };
    assert.deepEqual(fromHash(toHash(state, EVERYTHING), EVERYTHING), { state, wrong: [] }, key);
  }
});

test("what is as it was at first leaves no mark on the link", () => {
  assert.equal(toHash(INITIAL), "");
  assert.equal(toHash({ ...INITIAL, view: "map", heads: [[3, 5]] }), "view=map&heads=3.5");
  assert.deepEqual(fromHash(""), { state: INITIAL, wrong: [] });
});

test("what cannot be read stays as it was and is named", () => {
  const hash = "view=mapp&heads=3&camera=1,2,0&span=5,3,0,1&leave=x&row=-1&other=3.4&colour=red&join=max&words=1,,2";
  const { state, wrong } = fromHash(hash);
  assert.deepEqual(state, { ...INITIAL, join: "max" });
  const named = wrong.map((sentence) => sentence.slice(0, sentence.indexOf(":")));
  assert.deepEqual(named, ["view", "heads", "camera", "span", "leave", "row", "other", "colour", "words"]);
  assert.equal(wrong[0], "view: is mapp, must be start or text or map or heads or steps or compare");
});

test("no name in a link reaches what every object has", () => {
  const { wrong } = fromHash("__proto__=1&constructor=2&toString=3");
  assert.equal(wrong.length, 3);
});

test("those who listen hear of a change once, with what was before", () => {
  const store = new Store(INITIAL);
  const heard = [];
  const end = store.subscribe((state, before) => heard.push([state.row, before.row]));
  store.set({ row: 5 });
  end();
  store.set({ row: 7 });
  assert.deepEqual(heard, [[5, null]]);
  assert.equal(store.state.row, 7);
});
