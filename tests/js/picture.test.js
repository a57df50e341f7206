import assert from "node:assert/strict";
import test from "node:test";

import { Mass } from "../../src/clearhead/viewer/static/asked.js";
import { fitted, marksOn, roundStep } from "../../src/clearhead/viewer/static/axes.js";
import { Palette, ink } from "../../src/clearhead/viewer/static/colour.js";
import { barsOf } from "../../src/clearhead/viewer/static/draw.js";
import { zoomOf } from "../../src/clearhead/viewer/static/gestures.js";
import { SvgPen } from "../../src/clearhead/viewer/static/pens.js";
import { holders, largest } from "../../src/clearhead/viewer/static/side.js";
import { Scale, brief, digits, leastAbove0, lookup, paint } from "../../src/clearhead/viewer/static/tint.js";
import { continues, nameOf, tokensOf, visible } from "../../src/clearhead/viewer/static/units.js";

test("every unit has a label where labels fit, else those at round numbers, apart enough", () => {
  const close = marksOn(3, 8, 20, -55, { room: 13, apart: 40 });
  assert.deepEqual(close, { each: true, marks: [3, 4, 5, 6, 7].map((index) => ({ index, at: -55 + (index + 0.5) * 20 })) });
  for (let zoom = 0.001; zoom < 13; zoom *= 1.7) {
    const { each, marks } = marksOn(100, 131072, zoom, 0, { room: 13, apart: 40 });
    assert.ok(!each);
    const step = marks[1] ? marks[1].index - marks[0].index : 1;
    assert.ok(step * zoom >= 40 && step * zoom < 100 + 13, `${zoom} ${step}`);
    assert.match(String(step), /^[125]0*$/);
    assert.ok(marks.every(({ index }) => index % step === 0));
  }
  assert.equal(roundStep(0.3), 1);
  assert.equal(roundStep(21), 50);
});

test("a label is cut between characters as readers count them", () => {
  const measure = (text) => [...new Intl.Segmenter().segment(text)].length * 10;
  assert.equal(fitted("animal", 60, measure), "animal");
  assert.equal(fitted("animals", 60, measure), "anima…");
  assert.equal(fitted("👩‍👩‍👧👩‍👩‍👧👩‍👩‍👧", 20, measure), "👩‍👩‍👧…");
  assert.equal(fitted("नमस्ते", 20, measure), "न…");
  assert.equal(fitted("animal", 0, measure), "…");
});

test("each scale gives nothing at nothing, all at the top, and is undone by its inverse", () => {
  for (const kind of ["linear", "root", "log"]) {
    const scale = new Scale(kind, 0.7, 1e-4);
    assert.equal(scale.share(0), 0);
    assert.equal(scale.share(NaN), 0);
    assert.equal(scale.share(0.7), 1);
    assert.equal(scale.share(2), 1);
    for (const share of [0.01, 0.3, 0.99]) assert.ok(Math.abs(scale.share(scale.weight(share)) - share) < 1e-12);
  }
});

test("the logarithm begins at the smallest weight, but not more than six decades down", () => {
  assert.equal(new Scale("log", 1, 1e-3).floor, 1e-3);
  assert.equal(new Scale("log", 1, 1e-30).floor, 1e-6);
  assert.equal(new Scale("log", 0.5, Infinity).floor, 0.05);
});

test("a colour found by half a float32 is at most a step from the exact one, and NaN is clear", () => {
  const { ramp } = new Palette(false);
  for (const kind of ["linear", "root", "log"]) {
    const scale = new Scale(kind, 0.83, 1e-5);
    const colours = lookup(scale, ramp);
    const values = Float32Array.from({ length: 2000 }, (_, at) => 0.9 * 1.01 ** -at);
    values.set([0, NaN, -0, 0.83, Infinity]);
    const pixels = new Uint32Array(values.length);
    paint(values, colours, pixels);
    values.forEach((value, at) => {
      if (Number.isNaN(value)) return assert.equal(pixels[at], 0);
      const [red, green, blue, alpha] = new Uint8Array(pixels.buffer, at * 4, 4);
      const exact = Math.round(255 * scale.share(value));
      const close = [-1, 0, 1].some((off) => String(ramp[exact + off]) === String([red, green, blue]));
      assert.ok(close && alpha === 255, `${kind} ${value}`);
    });
  }
});

test("the ramp darkens or lightens all the way, so that it reads without hue", () => {
  for (const dark of [false, true]) {
    const { ramp } = new Palette(dark);
    const light = ramp.map(([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b);
    const rising = light.map((value) => (dark ? value : -value));
    assert.ok(rising.every((value, at) => at === 0 || value >= rising[at - 1] - 0.5));
    assert.ok(Math.abs(light[255] - light[0]) > 120);
    assert.ok(ramp.every((rgb) => ["#000000", "#ffffff"].includes(ink(rgb))));
  }
});

test("a number is written with the fewest digits that give the float32 back", () => {
  const written = { 0: "0", 1: "1", 0.5: "0.5", [Math.fround(0.1)]: "0.1", [Math.fround(1.234567e-7)]: "1.234567e-7", [Math.fround(1 / 3)]: "0.33333334", NaN: "NaN" };
  for (const [value, text] of Object.entries(written)) assert.equal(digits(Number(value)), text);
  for (let bits = 1; bits < 2000; bits++) {
    const value = Math.fround(Math.random() ** bits);
    assert.equal(Math.fround(Number(digits(value))), value);
  }
  assert.equal(brief(0.000123456), "0.000123");
  assert.equal(brief(0.0000123456), "1.23e-5");
  assert.equal(brief(1), "1");
  assert.equal(leastAbove0(new Float32Array([0, NaN, 0.5, 0.25])), 0.25);
});

test("the largest of a profile come in order and the mask is none of them", () => {
  const profile = new Float32Array([0.1, NaN, 0.4, 0, 0.4, 0.05]);
  assert.deepEqual(largest(profile, 3), [2, 4, 0]);
  assert.deepEqual(largest(profile, 9), [2, 4, 0, 5]);
  assert.equal(holders(profile, 0.8), 2);
  assert.equal(holders(profile, 0.9), 3);
});

test("a bar is the largest of the weights under its pixel, and none is lost", () => {
  const profile = new Float32Array(1000);
  profile[777] = 0.9;
  profile[13] = NaN;
  const bars = barsOf(profile, 0, 1000, 0.031, 0);
  assert.deepEqual(bars.map(([, , weight, index]) => [Math.fround(weight), index]), [[Math.fround(0.9), 777]]);
  assert.deepEqual(barsOf(profile, 776, 779, 20, -15500), [[40, 19, Math.fround(0.9), 777]]);
});

test("the mass of a part is that of its rows that see anything, whatever the windows it comes in", () => {
  const cells = new Float32Array([0.25, 0.5, NaN, NaN, NaN, NaN, 0.125, 0, NaN]);
  const [whole, parts] = [new Mass(), new Mass()];
  whole.add(cells, 3, 11);
  for (const row of [0, 1, 2]) parts.add(cells.subarray(3 * row, 3 * row + 3), 3, 11 + row);
  assert.deepEqual(whole.said, { mean: 0.4375, most: 0.75, row_of_most: 11 });
  assert.deepEqual(parts.said, whole.said);
  assert.deepEqual(new Mass().said, { mean: 0, most: 0, row_of_most: 0 });
});

test("a wheel's lines and pixels and a trackpad's pinch zoom alike, and no event leaps", () => {
  const pixels = zoomOf({ deltaY: -120, deltaMode: 0, ctrlKey: false });
  assert.ok(pixels > 1.2 && pixels < 1.4);
  assert.ok(zoomOf({ deltaY: -3, deltaMode: 1, ctrlKey: false }) > 1);
  assert.ok(zoomOf({ deltaY: 4, deltaMode: 0, ctrlKey: true }) < 1);
  assert.ok(zoomOf({ deltaY: -1e5, deltaMode: 0, ctrlKey: false }) < 2.1);
});

/** @type {import("../../src/clearhead/viewer/static/source.js").Axis} */
const AXIS = {
  text: "Tired 🙂 it.",
  tokens: [["[CLS]", "[CLS]", 0, 0, 0, true], ["Tir", "Tir", 0, 3, 1, false], ["ed", "##ed", 3, 5, 1, false], ["🙂", "ðŁ", 6, 7, 2, false], ["🙂", "Ļ", 6, 7, 2, false], [" it", "Ġit", 7, 10, 3, false], [".", ".", 10, 11, 4, false]],
  words: [["[CLS]", 0, 0, [0], true], ["Tired", 0, 5, [1, 2], false], ["🙂", 6, 7, [3, 4], false], ["it", 8, 10, [5], false], [".", 10, 11, [6], false]],
  sentences: [[0, 7]],
  documents: [[0, 7]],
};

test("a label is what the user wrote, never the tokenizer's piece; bytes of one character are numbered", () => {
  assert.deepEqual(AXIS.tokens.map((_, at) => nameOf(AXIS, "tokens", at)), ["[CLS]", "Tir", "ed", "🙂 ·1", "🙂 ·2", "it", "."]);
  assert.deepEqual(AXIS.words.map((_, at) => nameOf(AXIS, "words", at)), ["[CLS]", "Tired", "🙂", "it", "."]);
  assert.equal(nameOf(AXIS, "sentences", 0), "Tired 🙂 it.");
  assert.deepEqual(AXIS.tokens.map((_, at) => continues(AXIS, at)), [false, false, true, false, true, false, false]);
  assert.deepEqual(tokensOf(AXIS, "words", 1), [1, 3]);
});

test("what cannot be seen gets a sign, what acts on the screen becomes text", () => {
  const shown = { "\n": "⏎", " ": "␣", "  ": "␣␣", "\t": "⇥", " the": "the", "a b": "a b", "\x1b[31m": "␛[31m", "\u202eab": "U+202Eab", "\u2028": "U+2028", "\ud800": "U+D800", "न्म": "न्म" };
  for (const [text, label] of Object.entries(shown)) assert.equal(visible(text), label);
});

test("a drawing as SVG holds every text as text", () => {
  const pen = new SvgPen(new Palette(true));
  pen.within(0, 0, 10, 10, () => pen.text('</text><script>alert("1")&', 1.234567, 2, { colour: "#000000", size: 12, turn: -90, align: "end" }));
  pen.hatch(0, 0, 5, 5);
  const svg = pen.document(100, 50, "<title> & more");
  assert.ok(svg.includes("&lt;/text&gt;&lt;script&gt;alert(&quot;1&quot;)&amp;</text>"));
  assert.ok(svg.includes("<title>&lt;title&gt; &amp; more</title>"));
  assert.ok(!/<script|<image/.test(svg));
  assert.ok(svg.includes('id="hidden"') && svg.includes("url(#hidden)"));
  assert.ok(!/ (x|y|width|height)="(NaN|undefined)/.test(svg));
});
