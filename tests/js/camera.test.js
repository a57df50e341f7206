import assert from "node:assert/strict";
import test from "node:test";

import { Camera } from "../../src/clearhead/viewer/static/camera.js";

/** A camera over 1009 rows and 701 columns, in a window of 401 x 307 pixels. */
function camera() {
  const made = new Camera(1009, 701);
  made.resize(401, 307);
  made.fit();
  return made;
}

const near = (a, b) => assert.ok(Math.abs(a - b) < 1e-6, `${a} is not ${b}`);

test("the whole fits into the window and begins at its top left", () => {
  const c = camera();
  assert.ok(c.whole);
  near(c.zoom, 307 / 1009);
  near(c.left, 0);
  near(c.top, 0);
  assert.deepEqual(c.bounds, [0, 1009, 0, 701]);
});

test("what is under the pointer stays under it while zooming", () => {
  const c = camera();
  c.zoomAt(150, 200, 20);
  for (const factor of [1.3, 0.9, 2, 0.7]) {
    const before = c.unitAt(150, 200);
    c.zoomAt(150, 200, factor);
    c.unitAt(150, 200).forEach((unit, axis) => near(unit, before[axis]));
  }
});

test("zooming out ends at the whole, zooming in at a unit one can read", () => {
  const c = camera();
  c.zoomAt(10, 10, 1e9);
  assert.equal(c.zoom, 96);
  c.zoomAt(300, 300, 1e-9);
  assert.ok(c.whole);
  near(c.left, 0);
});

test("no move leaves the matrix", () => {
  const c = camera();
  c.zoomAt(200, 150, 10);
  for (const [dx, dy] of [[1e6, 1e6], [-1e7, -1e7]]) {
    c.pan(dx, dy);
    const [a, b, x, y] = c.bounds;
    assert.ok(a >= 0 && b <= 1009 && x >= 0 && y <= 701 && b > a && y > x);
  }
  near(c.unitAt(401, 307)[0], 1009);
  near(c.unitAt(401, 307)[1], 701);
});

test("a pixel of movement is a pixel", () => {
  const c = camera();
  c.frame([500, 510, 300, 310]);
  const [left, top] = [c.left, c.top];
  c.pan(7, -11);
  near(c.left - left, 7);
  near(c.top - top, -11);
});

test("the few last rows of a long prompt are still to be seen", () => {
  const c = new Camera(3, 131072);
  c.resize(800, 600);
  c.fit();
  assert.ok(c.rows * c.zoom >= 39.9);
  assert.ok(!c.whole);
});

test("a framed part is seen whole, and a revealed unit is seen", () => {
  const c = camera();
  c.frame([100, 130, 600, 640]);
  const [a, b, x, y] = c.bounds;
  assert.ok(a <= 100 && b >= 130 && x <= 600 && y >= 640);
  c.reveal(900, 3);
  const now = c.bounds;
  assert.ok(now[0] <= 900 && now[1] > 900 && now[2] <= 3 && now[3] > 3);
});

test("a window that showed the whole does so when its size changes, another keeps its place", () => {
  const c = camera();
  c.resize(201, 999);
  assert.ok(c.whole);
  c.frame([100, 130, 300, 340]);
  const { x, y, zoom } = c.place;
  c.resize(207, 900);
  assert.deepEqual(c.place, { x, y, zoom });
});
