// The text as its author wrote it, every word a thing to point at.

import { colour, css, ink } from "./colour.js";

const NUMBERS_SHOWN = 8;

export class TextView {
  /**
   * @param {HTMLElement} root
   * @param {import("./weights.js").RunData} run
   * @param {{point: (word: number | null) => void, choose: (word: number) => void}} on
   */
  constructor(root, run, on) {
    this.run = run;
    /** @type {Map<number, HTMLElement>} */
    this.words = new Map();
    for (const [piece, word] of run.pieces) {
      if (word === null) {
        root.append(piece);
        continue;
      }
      const span = document.createElement("span");
      span.className = piece.trim() ? "word" : "word space";
      span.textContent = piece;
      span.dataset.word = String(word);
      span.setAttribute("role", "button");
      span.tabIndex = -1;
      root.append(span);
      this.words.set(word, span);
    }
    root.classList.add(["long", "medium", "short"][Number(run.pieces.length < 250) + Number(run.pieces.length < 60)]);
    const wordOf = (/** @type {Event} */ event) => {
      const span = /** @type {HTMLElement} */ (event.target).closest(".word");
      return span ? Number(/** @type {HTMLElement} */ (span).dataset.word) : null;
    };
    root.addEventListener("pointerover", (event) => {
      if (event.pointerType === "mouse") on.point(wordOf(event));
    });
    root.addEventListener("pointerleave", () => on.point(null));
    root.addEventListener("click", (event) => {
      const word = wordOf(event);
      if (word !== null) on.choose(word);
    });
    root.addEventListener("focusin", (event) => on.point(wordOf(event)));
    root.addEventListener("focusout", () => on.point(null));
    root.addEventListener("keydown", (event) => {
      const word = wordOf(event);
      if (word === null) return;
      if (event.key === "Enter" || event.key === " ") on.choose(word);
      else if (!this.go(word, event.key)) return;
      event.preventDefault();
    });
  }

  /**
   * Move the focus from a word; left and right follow the direction of the writing.
   * @param {number} word
   * @param {string} key
   */
  go(word, key) {
    const order = [...this.words.keys()];
    const at = order.indexOf(word);
    const here = /** @type {HTMLElement} */ (this.words.get(word));
    const rtl = getComputedStyle(/** @type {HTMLElement} */ (here.parentElement)).direction === "rtl";
    const step = { ArrowRight: rtl ? -1 : 1, ArrowLeft: rtl ? 1 : -1, ArrowDown: 1, ArrowUp: -1 }[key];
    const to = key === "Home" ? 0 : key === "End" ? order.length - 1 : step && at + step;
    if (to === undefined || order[to] === undefined) return false;
    this.words.get(order[to])?.focus();
    return true;
  }

  /**
   * @param {number} word
   * @param {import("./weights.js").Link[]} links  by word; those not to be shown have weight 0
   * @param {string} verb  "reads" or "is read by"
   */
  update(word, links, verb) {
    const strong = [...links].sort((a, b) => b.weight - a.weight).slice(0, NUMBERS_SHOWN);
    const numbered = new Set(strong.map((link) => link.word));
    for (const [at, span] of this.words) {
      const { weight, layer, head } = links[at];
      const lit = weight >= 0.02;
      const rgb = colour(weight);
      span.style.backgroundColor = lit ? css(rgb) : "";
      span.style.color = lit ? ink(rgb) : "";
      span.dataset.weight = lit && numbered.has(at) ? weight.toFixed(2).replace(/^0/, "") : "";
      span.setAttribute("aria-pressed", String(at === word));
      span.tabIndex = at === word ? 0 : -1;
      const own = this.run.words[at][0];
      span.setAttribute(
        "aria-label",
        at === word ? `${own}, chosen` : `${own}: ${this.run.words[word][0]} ${verb} it ${weight.toFixed(3)}, head ${layer}.${head}`,
      );
    }
  }
}
