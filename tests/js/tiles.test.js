import assert from "node:assert/strict";
import test from "node:test";

import { Tiles, lastLevel, levelFor, spotsIn } from "../../src/clearhead/viewer/static/tiles.js";

/** A source whose answers come when the test says so. */
function source() {
  const asked = [];
  const fetch = (spot, signal) =>
    new Promise((give, fail) => {
      const question = { spot, signal, give: (more = {}) => give({ values: new Float32Array(1), rows: 1, columns: 1, top: 0, done: true, ...more }), fail };
      signal.addEventListener("abort", () => fail(new DOMException("", "AbortError")));
      asked.push(question);
    });
  return { asked, fetch };
}

const turn = () => new Promise((done) => setImmediate(done));
const spots = (count, row = 0) => Array.from({ length: count }, (_, column) => ({ level: 0, row, column }));

/** Tiles with a source, and how often they changed and failed. */
function made(most = 10) {
  const { asked, fetch } = source();
  const heard = { changed: 0, failed: [] };
  const tiles = new Tiles(fetch, { most, changed: () => heard.changed++, failed: (error) => heard.failed.push(error) });
  return { tiles, asked, heard };
}

test("a cell is a pixel or more at the level that is drawn, and not two", () => {
  const last = lastLevel(131072, 1000);
  assert.equal(last, 9);
  for (let zoom = 1 / 512; zoom < 100; zoom *= 1.37) {
    const level = levelFor(zoom, last);
    assert.ok(zoom * 2 ** level >= 0.999 && (level === 0 || zoom * 2 ** level < 2), String(zoom));
  }
  assert.equal(levelFor(1e-9, last), last);
  assert.equal(lastLevel(256, 1), 0);
  assert.equal(lastLevel(257, 1), 1);
});

test("tiles come nearest to what is looked at first, and cover what is seen", () => {
  const found = spotsIn(1, [300, 1600, 100, 1030], [600, 900]);
  assert.equal(found.length, 4 * 3);
  assert.deepEqual(found[0], { level: 1, row: 1, column: 1 });
  const away = found.map(({ row, column }) => ((row + 0.5) * 512 - 600) ** 2 + ((column + 0.5) * 512 - 900) ** 2);
  assert.deepEqual(away, [...away].sort((a, b) => a - b));
});

test("no more than four are asked for at once, in the order of need", async () => {
  const { tiles, asked } = made();
  tiles.want(spots(9));
  assert.deepEqual(asked.map(({ spot }) => spot.column), [0, 1, 2, 3]);
  assert.equal(tiles.waiting, 5);
  asked[1].give();
  await turn();
  assert.deepEqual(asked.map(({ spot }) => spot.column), [0, 1, 2, 3, 4]);
  assert.ok(tiles.get({ level: 0, row: 0, column: 1 }));
});

test("what is no longer wanted is called off, and its place taken at once", async () => {
  const { tiles, asked, heard } = made();
  tiles.want(spots(4));
  tiles.want([...spots(2, 1), { level: 0, row: 0, column: 2 }]);
  assert.deepEqual(asked.map(({ signal }) => signal.aborted), [true, true, false, true, false, false]);
  await turn();
  assert.equal(tiles.asked.size, 3);
  asked[0].give();
  await turn();
  assert.equal(tiles.kept.size, 0);
  assert.deepEqual(heard, { changed: 0, failed: [] });
});

test("a burst of wishes leaves no more than four questions and nothing of what was wished before", async () => {
  const { tiles, asked } = made();
  for (let row = 0; row < 300; row++) tiles.want(spots(20, row));
  await turn();
  assert.equal(asked.filter(({ signal }) => !signal.aborted).length, 4);
  assert.equal(tiles.asked.size, 4);
  assert.equal(tiles.wanted.size, 20);
});

test("the tiles kept are bounded, those used longest ago go first, those wanted stay", async () => {
  const { tiles, asked } = made(5);
  for (let row = 0; row < 6; row++) {
    tiles.want(spots(2, row));
    for (const question of asked) question.give();
    await turn();
    tiles.get({ level: 0, row: 0, column: 0 });
  }
  tiles.want(spots(2, 5));
  assert.equal(tiles.kept.size, 5);
  assert.ok(tiles.get({ level: 0, row: 0, column: 0 }), "used lately");
  assert.ok(!tiles.get({ level: 0, row: 1, column: 0 }));
  assert.ok(tiles.get({ level: 0, row: 5, column: 1 }));
});

test("a tile that is not done is shown and asked for again, while it is wanted", async () => {
  const { tiles, asked, heard } = made();
  const later = () => new Promise((done) => setTimeout(done, 60));
  tiles.want(spots(1));
  asked[0].give({ done: false });
  await later();
  assert.equal(heard.changed, 1);
  assert.equal(asked.length, 2);
  asked[1].give({ done: false });
  await turn();
  tiles.want([]);
  await later();
  assert.equal(asked.length, 2, "no longer wanted, no longer asked for");
  tiles.want(spots(1));
  asked[2].give();
  await later();
  assert.equal(asked.length, 3);
});

test("until a tile comes, the nearest coarser one that covers it stands for it", async () => {
  const { tiles, asked } = made();
  tiles.want([{ level: 4, row: 0, column: 1 }, { level: 6, row: 0, column: 0 }]);
  for (const question of asked) question.give();
  await turn();
  assert.deepEqual(tiles.above({ level: 2, row: 3, column: 7 }, 6)?.spot, { level: 4, row: 0, column: 1 });
  assert.deepEqual(tiles.above({ level: 2, row: 3, column: 8 }, 6)?.spot, { level: 6, row: 0, column: 0 });
  assert.equal(tiles.above({ level: 2, row: 3, column: 8 }, 5), null);
});

test("after a failure nothing is asked until somebody wishes it, and it is told once", async () => {
  const { tiles, asked, heard } = made();
  tiles.want(spots(6));
  asked[0].fail(new Error("gone"));
  asked[1].fail(new Error("gone"));
  await turn();
  tiles.want(spots(6, 1));
  await turn();
  assert.equal(asked.length, 4);
  assert.equal(heard.failed.length, 1);
  tiles.resume();
  assert.equal(asked.length, 8);
});
