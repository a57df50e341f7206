// What is chosen, and the views that show it.

import { colour, css, onSchemeChange } from "./colour.js";
import { HeadsView } from "./heads.js";
import { MatrixView, isolated } from "./matrix.js";
import { TextView } from "./text.js";
import { Weights } from "./weights.js";

const LISTED = 8;

/** @param {string} id */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** @param {Weights} weights */
function show(weights) {
  const { run } = weights;
  const all = weights.allHeads();
  const ordinary = run.words.flatMap(([, , special], at) => (special ? [] : [at]));
  const asked = run.opening;
  const first = opening(weights, ordinary);
  const state = {
    word: first.from,
    pointed: /** @type {number | null} */ (null),
    target: /** @type {number | null} */ (first.word),
    forward: true,
    layer: first.layer,
    head: first.head,
    /** @type {"all" | "layer" | "head"} */
    scope: asked.head !== null ? "head" : asked.layer !== null ? "layer" : "all",
    special: asked.special,
    self: asked.self,
    byWord: !asked.raw,
    root: true,
  };
  const share = (/** @type {number} */ weight) => (state.root ? Math.sqrt(weight) : weight);

  const text = new TextView(element("text"), run, {
    point: (word) => change({ pointed: word }),
    choose: (word) => change({ word, pointed: null, target: null }),
  });
  const heads = new HeadsView(element("heads"), weights, (layer, head) => change({ layer, head, scope: "head" }));
  const matrix = new MatrixView(/** @type {HTMLCanvasElement} */ (element("matrix")), element("readout"), (w) => weights.shown(w));

  /** @param {Partial<typeof state>} what */
  function change(what) {
    const before = { ...state };
    Object.assign(state, what);
    const differs = (/** @type {(keyof typeof state)[]} */ ...keys) => keys.some((key) => before[key] !== state[key]);
    reading();
    if (differs("special", "root")) thumbnails();
    if (differs("special", "root", "layer", "head", "byWord")) map();
  }

  function reading() {
    const word = state.pointed ?? state.word;
    const chosen = all.filter(
      ([layer, head]) =>
        state.scope === "all" || (layer === state.layer && (state.scope === "layer" || head === state.head)),
    );
    const links = weights.links(word, state.forward, chosen);
    const hidden = (/** @type {number} */ at) => (!state.special && run.words[at][2]) || (!state.self && at === word);
    const verb = state.forward ? "reads" : "is read by";
    text.update(word, links.map((link) => (hidden(link.word) ? { ...link, weight: 0 } : link)), verb);
    const ranked = links.filter((link) => !hidden(link.word)).sort((a, b) => b.weight - a.weight);
    const kept = state.pointed === null ? state.target : null;
    const target = kept ?? ranked[0]?.word ?? word;
    list(word, verb, ranked.slice(0, LISTED), target);
    rest(word, chosen);
    const strength = Float32Array.from(all, ([layer, head]) =>
      state.forward ? weights.reads(layer, head, word)[target] : weights.readBy(layer, head, word)[target],
    );
    const phrase = `${run.words[word][0]} ${verb} ${run.words[target][0]}`;
    heads.update(state.layer * run.heads + state.head, strength, phrase);
    element("heads-note").replaceChildren(
      "Rows are layers. The line under each head is how much ", isolated(run.words[word][0]), ` ${verb} `, isolated(run.words[target][0]), " there. Choose a head to look closer.",
    );
    press("reads", state.forward);
    press("read-by", !state.forward);
    element("all-heads").hidden = state.scope === "all";
    element("all-heads").textContent =
      state.scope === "layer" ? `layer ${state.layer} only ×` : `head ${state.layer}.${state.head} only ×`;
    element("all-heads").setAttribute("aria-label", "Show all heads again");
  }

  /**
   * @param {number} word
   * @param {string} verb
   * @param {import("./weights.js").Link[]} ranked
   * @param {number} target
   */
  function list(word, verb, ranked, target) {
    element("list-title").replaceChildren(isolated(run.words[word][0]), ` ${verb}`);
    element("list").replaceChildren(
      ...ranked.map((link) => {
        const item = document.createElement("li");
        const button = document.createElement("button");
        button.type = "button";
        button.className = "target";
        button.setAttribute("aria-pressed", String(link.word === target));
        const bar = document.createElement("span");
        bar.className = "meter";
        bar.append(document.createElement("i"));
        /** @type {HTMLElement} */ (bar.firstChild).style.width = `${100 * link.weight}%`;
        const where = document.createElement("span");
        where.className = "where";
        where.textContent = `${link.layer}.${link.head}`;
        where.title = `layer ${link.layer}, head ${link.head}`;
        const number = document.createElement("span");
        number.className = "number";
        number.textContent = weights.shown(link.weight);
        button.append(isolated(run.words[link.word][0]), bar, number, where);
        button.addEventListener("click", () => change({ word, pointed: null, target: link.word, layer: link.layer, head: link.head }));
        item.append(button);
        return item;
      }),
    );
  }

  /**
   * Say what the list leaves out, and how much of the reading that is.
   * @param {number} word
   * @param {[number, number][]} chosen
   */
  function rest(word, chosen) {
    let special = 0;
    let self = 0;
    for (const [layer, head] of chosen) {
      const row = weights.reads(layer, head, word);
      row.forEach((weight, at) => {
        if (at === word) self += weight / chosen.length;
        else if (run.words[at][2]) special += weight / chosen.length;
      });
    }
    const percent = (/** @type {number} */ part) => `${(100 * part).toFixed(0)} %`;
    const over = chosen.length > 1 ? `; each weight is from the head named beside it, the strongest of ${chosen.length}` : "";
    const own = run.words[word][2] ? "This token" : "This word";
    element("rest").textContent = `${own} spends ${percent(special)} of its attention on special tokens and ${percent(self)} on itself${over}.`;
  }

  function thumbnails() {
    heads.draw(state.special ? run.words.map((_, at) => at) : ordinary, share);
  }

  function map() {
    const { layer, head } = state;
    const names = (state.byWord ? run.words : run.tokens).map(([text, raw]) => sign(!state.byWord && asked.raw ? String(raw) : text));
    const special = state.byWord ? run.words.map((w) => w[2]) : run.tokens.map((t) => t[3]);
    const kept = names.flatMap((_, at) => (state.special || !special[at] ? [at] : []));
    const cells = state.byWord ? weights.words(layer, head) : weights.tokens(layer, head);
    let most = 0;
    for (const from of kept) for (const to of kept) most = Math.max(most, cells[from * names.length + to]);
    const scaled = (/** @type {number} */ weight) => share(most ? weight / most : 0);
    element("matrix-title").textContent = `Layer ${layer}, head ${head}`;
    matrix.update(cells, names.length, kept, names, scaled, `Layer ${layer}, head ${head}: what each ${state.byWord ? "word" : "token"} reads of each other`);
    legend(weights.shown(most));
    press("by-word", state.byWord);
    press("by-token", !state.byWord);
    press("linear", !state.root);
    press("root", state.root);
  }

  /** @param {string} end */
  function legend(end) {
    element("legend-end").textContent = end;
    const canvas = /** @type {HTMLCanvasElement} */ (element("legend"));
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    for (let x = 0; x < canvas.width; x++) {
      context.fillStyle = css(colour(share(x / (canvas.width - 1))));
      context.fillRect(x, 0, 1, 1);
    }
  }

  /** @param {string} id @param {Partial<typeof state>} what */
  const when = (id, what) => element(id).addEventListener("click", () => change(what));
  when("reads", { forward: true, target: null });
  when("read-by", { forward: false, target: null });
  when("all-heads", { scope: "all" });
  when("by-word", { byWord: true });
  when("by-token", { byWord: false });
  when("linear", { root: false });
  when("root", { root: true });
  for (const id of /** @type {const} */ (["special", "self"])) {
    const box = /** @type {HTMLInputElement} */ (element(id));
    box.checked = state[id];
    box.addEventListener("change", () => change({ [id]: box.checked, target: null }));
  }
  const everything = () => (reading(), thumbnails(), map());
  onSchemeChange(everything);
  everything();
}

/**
 * Where the page opens: the strongest link between words of letters that are not neighbours, from
 * the word and in the heads asked for.
 * @param {Weights} weights
 * @param {number[]} ordinary  the words that are not special
 */
function opening(weights, ordinary) {
  const { word, layer, head } = weights.run.opening;
  const heads = weights.allHeads().filter(([l, h]) => (layer ?? l) === l && (head ?? h) === h);
  const lettered = new Set(ordinary.filter((at) => /\p{L}/u.test(weights.run.words[at][0])));
  const from = word ?? ordinary[0] ?? 0;
  let best = { from, word: from, layer: heads[0][0], head: heads[0][1], weight: -1 };
  for (const from of word === null ? lettered : [word]) {
    for (const link of weights.links(from, true, heads)) {
      const far = Math.abs(link.word - from) > 2;
      if (far && lettered.has(link.word) && link.weight > best.weight) best = { ...link, from };
    }
  }
  return best;
}

/** @param {string} id @param {boolean} down */
function press(id, down) {
  element(id).setAttribute("aria-pressed", String(down));
}

/** White space as a sign, so that a label is never blank. @param {string} name */
function sign(name) {
  return name.replaceAll("\n", "↵").replaceAll("\t", "⇥") .trim() || "␣";
}

try {
  const run = JSON.parse(element("run").textContent ?? "");
  show(await Weights.read(run));
  document.documentElement.dataset.ready = "yes";
} catch (error) {
  element("notice").hidden = false;
  element("notice").textContent =
    typeof DecompressionStream === "undefined"
      ? "This browser is too old for this page: it needs one from 2023 or later."
      : `This page could not be drawn: ${error}`;
}
