import assert from "node:assert/strict";
import test from "node:test";

import { captionOf, cellsOf, fileName, toCsv, toJson } from "../../src/clearhead/viewer/static/export.js";
import { Figure, escaped, wrapped } from "../../src/clearhead/viewer/static/figure.js";
import { shifted } from "../../src/clearhead/viewer/static/snapshot.js";
import { INITIAL } from "../../src/clearhead/viewer/static/state.js";

const PALETTE = { paper: "#fff", ink: "#000", soft: "#666" };
/** @type {any} */
const ABOUT = {
  model: "org/tiny model", title: 'نص "عربي" 東京 <img onerror=x>', text: "a\nb", layers: [4, 5], heads: [0, 1, 2], decimals: 3, notes: ["cut to 5 tokens"], proof: "certificate: holds", columns: null,
  rows: { text: "a\nb", tokens: [["a", "a", 0, 1, 0, false], ["b", "b", 2, 3, 1, false]], words: [], sentences: [], documents: [] },
};

/** RFC 4180, read back. @param {string} text */
function parsed(text) {
  const rows = [[""]];
  let quoted = false;
  for (let at = 0; at < text.length; at++) {
    const row = rows[rows.length - 1];
    if (text[at] === '"' && quoted && text[at + 1] === '"') row[row.length - 1] += text[at++];
    else if (text[at] === '"') quoted = !quoted;
    else if (text[at] === "," && !quoted) row.push("");
    else if (text[at] === "\n" && !quoted) rows.push([""]);
    else row[row.length - 1] += text[at];
  }
  return rows.slice(0, -1);
}

test("any text comes back from the table it is written to", () => {
  const texts = ["plain", 'with "quotes"', "a, comma", "two\nlines", "東京", "</script>", ""];
  const csv = toCsv({ columns: ["text", "weight"], rows: texts.map((text, at) => [text, at ? at / 8 : null]) });
  assert.deepEqual(parsed(csv), [["text", "weight"], ...texts.map((text, at) => [text, at ? String(at / 8) : ""])]);
});

test("JSON says what its numbers are of", () => {
  const state = { ...INITIAL, heads: /** @type {[number, number][]} */ ([[1, 2]]) };
  const read = JSON.parse(toJson({ columns: ["to", "weight"], rows: [["b", 0.5], ["c", null]] }, ABOUT, state));
  assert.deepEqual(read.rows, [{ to: "b", weight: 0.5 }, { to: "c", weight: null }]);
  assert.deepEqual(read.heads, [{ layer: 5, head: 2 }]);
  assert.deepEqual([read.model, read.decimals, read.proof], ["org/tiny model", 3, "certificate: holds"]);
});

test("a file is named for what is in it, in letters of any script and nothing else", () => {
  const state = { ...INITIAL, view: /** @type {const} */ ("map"), heads: /** @type {[number, number][]} */ ([[1, 2]]) };
  assert.equal(fileName(ABOUT, state, "svg"), "clearhead_org-tiny-model_نص-عربي-東京-img-onerror-x_map_L5H2.svg");
  const many = { ...state, join: /** @type {const} */ ("max"), heads: /** @type {[number, number][]} */ ([[0, 0], [1, 1]]) };
  assert.match(fileName(ABOUT, many, "csv"), /_map_max-of-2-heads\.csv$/);
  assert.doesNotMatch(fileName({ ...ABOUT, title: "../../etc/passwd\n" }, state, "png"), /[/\\\n]/);
});

test("a caption says what was left out and what is not exact", () => {
  const lines = captionOf(ABOUT, { ...INITIAL, leave: { special: true, sinks: false, columns: [1, 2] } }).join(" | ");
  for (const part of ["Layer 4 · head 0", "special tokens and 2 columns left out", "rounded to 3 decimals", "The text was cut to 5 tokens.", "certificate: holds"]) assert.ok(lines.includes(part), part);
});

test("a figure is XML whatever its texts hold", () => {
  const figure = new Figure(100, 50, PALETTE, '</title><script>"&');
  figure.text(3, 4, "a<b & \u0007 \ud800 </text>", { anchor: "middle", weight: 620, turn: -45 });
  figure.rect(1, 2, 3, 4, "rgb(1 2 3)", { radius: 2, stroke: "#000" });
  figure.path("M0 0", "#123456", 2, { opacity: 0.5 });
  figure.within(1, 2, 3, 4, () => figure.text(0, 0, "clipped"));
  figure.caption(["small print"]);
  const svg = figure.toSvg();
  assert.ok(!/<script|\u0007|\ud800/.test(svg));
  assert.ok(svg.includes("a&lt;b &amp; ␇ \ufffd &lt;/text&gt;") && svg.includes("small print"));
  assert.equal((svg.match(/<(?!\/|title|svg)\w+ [^>]*\/>|<text [^>]*>[^<]*<\/text>/g) ?? []).length, 7);
  assert.match(svg, /<clipPath id="(\w+)"><rect [^>]*\/><\/clipPath><g clip-path="url\(#\1\)">\n<text[^>]*>clipped<\/text>\n<\/g>/);
  assert.equal(escaped('"'), "&quot;");
});

test("small print is cut between words", () => {
  assert.deepEqual(wrapped("one two three", 8), ["one two", "three"]);
  assert.deepEqual(wrapped("unbreakable", 4), ["unbr", "eaka", "ble"]);
});

test("a path is moved, every point of it", () => {
  assert.equal(shifted("M1 2 C3.5 -4 5 6 7 8", 10, 100), "M11.0 102.0 C13.5 96.0 15.0 106.0 17.0 108.0");
});

test("the cells of a small part are exact, those of a large one as they are pooled", async () => {
  /** @type {string[]} */
  const asked = [];
  const source = {
    ask: async (/** @type {string} */ _run, /** @type {string} */ question, /** @type {any} */ args) => {
      asked.push(question);
      if (question === "window") return { json: {}, arrays: [Float32Array.of(0.5, NaN, 0.25, 0.75)] };
      const early = asked.length === 2; // the first answer of a tile is not yet whole
      return { json: { rows: 2, columns: 2, done: !early }, arrays: [Float32Array.of(args.level, 1, 2, 3)] };
    },
  };
  const app = /** @type {any} */ ({ source, state: { ...INITIAL, pool: "max" } });
  const small = await cellsOf(app, ABOUT, { rows: [0, 2], columns: [0, 2] });
  assert.deepEqual(small.rows, [[0, "a", 0, "a", 0.5], [0, "a", 1, "b", null], [1, "b", 0, "a", 0.25], [1, "b", 1, "b", 0.75]]);
  const large = await cellsOf(app, ABOUT, { rows: [0, 1024], columns: [0, 1024] });
  assert.deepEqual(large.columns, ["row", "row_end", "column", "column_end", "max_weight"]);
  assert.deepEqual(large.rows[1], [0, 2, 2, 4, 1]);
  assert.equal(asked.filter((question) => question === "tile").length, 5); // 2 x 2 tiles, one asked twice
});
