import assert from "node:assert/strict";
import test from "node:test";

import { chosenAfter, chunksOf, groupsOf, hitsOf, inUnits, isSpecial, spansOf, textOf } from "../../src/clearhead/viewer/static/layout.js";
import { INITIAL } from "../../src/clearhead/viewer/static/state.js";
import { codeUnits, percent, shortened, shown } from "../../src/clearhead/viewer/static/labels.js";

/** An axis of words cut at spaces, one token each. @param {string} text */
function axis(text) {
  const words = [...text.matchAll(/\S+/g)].map(([word], at) => {
    const start = [...text.slice(0, [...text.matchAll(/\S+/g)][at].index)].length;
    return [word, start, start + [...word].length, [at], false];
  });
  const tokens = words.map(([word, start, end], at) => [word, word, start, end, at, false]);
  return /** @type {any} */ ({ text, words, tokens, sentences: [[0, words.length]], documents: [] });
}

test("offsets count code points: an emoji before a word does not shift it", () => {
  const one = axis("🙂 नमस्ते 東京 🇯🇵 end");
  for (const { unit, start, end } of spansOf(one, "words")) assert.equal(one.text.slice(start, end), one.words[unit][0]);
  assert.deepEqual([0, 1, 2, 9].map(codeUnits("a🙂b")), [0, 1, 3, 4]);
});

test("tokens that share a character: the first has it, and none is drawn twice", () => {
  const one = axis("🙂");
  one.tokens = [["🙂", "ð", 0, 1, 0, false], ["🙂", "Ł", 0, 1, 0, false]];
  assert.deepEqual(spansOf(one, "tokens"), [{ unit: 0, start: 0, end: 2 }]);
});

test("special tokens stand nowhere in the text, and have their names", () => {
  const one = axis("a b");
  one.tokens.push(["[SEP]", "[SEP]", 3, 3, 2, true]);
  one.sentences.push([2, 3]);
  assert.equal(spansOf(one, "tokens").length, 2);
  assert.ok(isSpecial(one, "tokens", 2) && isSpecial(one, "sentences", 1) && !isSpecial(one, "sentences", 0));
  assert.equal(textOf(one, "sentences", 1), "[SEP]");
  assert.equal(textOf(one, "sentences", 0), "a b");
});

test("chunks put together are the text, each span whole in one of them", () => {
  for (const text of ["one two three four five\nsix seven\n\neight", "x".repeat(40), "東京".repeat(30), "a 🙂🙂🙂🙂🙂🙂🙂🙂 b", ""]) {
    const spans = spansOf(axis(text), "words");
    const chunks = chunksOf(text, spans, 9);
    assert.equal(chunks.map(({ start, end }) => text.slice(start, end)).join(""), text);
    const held = chunks.flatMap(({ first, last }) => spans.slice(first, last));
    assert.deepEqual(held, spans);
    for (const chunk of chunks) {
      for (const span of spans.slice(chunk.first, chunk.last)) assert.ok(chunk.start <= span.start && span.end <= chunk.end);
      assert.equal(chunk.line, text[chunk.end - 1] === "\n");
    }
  }
});

test("a search finds in any case, across words, and takes signs for signs", () => {
  const one = axis("The (cat) sat. the CAT? a.b axb");
  const spans = spansOf(one, "words");
  assert.deepEqual(hitsOf(one.text, spans, "cat"), [[1], [4]]);
  assert.deepEqual(hitsOf(one.text, spans, "sat. the"), [[2, 3]]);
  assert.deepEqual(hitsOf(one.text, spans, "a.b"), [[5]]);
  assert.deepEqual(hitsOf(one.text, spans, "(CAT)"), [[1]]);
  assert.deepEqual(hitsOf(one.text, spans, "  "), []);
});

test("units side by side are read as one group", () => {
  assert.deepEqual(groupsOf([7, 2, 3, 3, 9, 8]), [[2, 3], [7, 8, 9]]);
  assert.deepEqual(groupsOf([]), []);
});

test("a click alone chooses one, with ctrl one more or less, with shift all from the last", () => {
  const [alone, more, range] = [{ more: false, range: false }, { more: true, range: false }, { more: false, range: true }];
  assert.deepEqual(chosenAfter([1, 2], 5, alone), [5]);
  assert.deepEqual(chosenAfter([1], 5, more), [1, 5]);
  assert.deepEqual(chosenAfter([1, 5], 1, more), [5]);
  assert.deepEqual(chosenAfter([5], 5, more), [5]);
  assert.deepEqual([...chosenAfter([5], 8, range)].sort(), [5, 6, 7, 8]);
  assert.deepEqual([...chosenAfter([5], 3, range)].sort(), [3, 4, 5]);
  assert.deepEqual(groupsOf(chosenAfter([1, 5], 7, { more: true, range: true })), [[1], [5, 6, 7]]);
  assert.deepEqual(chosenAfter([], 4, range), [4]);
});

test("a label is cut between characters as a reader counts them", () => {
  assert.equal(shortened("👩‍👩‍👧👍🏽नमस्ते", 3), "👩‍👩‍👧👍🏽…");
  assert.equal(shortened("short", 9), "short");
});

test("a number has the digits that are known of it", () => {
  assert.equal(shown(0.12345678, 3), "0.123");
  assert.equal(shown(0.12345678), "0.1235");
  assert.equal(shown(0.0000123), "1.23e-5");
  assert.equal(shown(NaN, 4), "hidden");
  assert.deepEqual([0, 0.001, 0.5].map(percent), ["0 %", "under 1 %", "50 %"]);
});

test("what is chosen stays chosen in other units", () => {
  const rows = axis("un der stand it");
  rows.words = [["under", 0, 6, [0, 1], false], ["stand", 7, 12, [2], false], ["it", 13, 15, [3], false]];
  rows.tokens.forEach((token, at) => (token[4] = [0, 0, 1, 2][at]));
  rows.sentences = [[0, 2], [2, 4]];
  const about = /** @type {any} */ ({ rows, columns: null });
  const state = { ...INITIAL, unit: /** @type {const} */ ("tokens"), words: [0, 1, 3, 99], row: 3, column: 1, span: /** @type {any} */ ([0, 1, 0, 1]) };
  const words = { ...state, ...inUnits(about, state, "words") };
  assert.deepEqual([words.unit, words.words, words.row, words.column, words.span], ["words", [0, 2], 2, 0, null]);
  const sentences = inUnits(about, words, "sentences");
  assert.deepEqual([sentences.words, sentences.row, sentences.column], [[0, 1], 1, 0]);
  assert.deepEqual(inUnits(about, { ...words, row: 2 }, "tokens").row, 3);
});
