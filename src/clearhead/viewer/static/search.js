// Search in a text: what is found is marked, and Enter goes from hit to hit.

import { make } from "./dom.js";

/** @typedef {import("./pane.js").TextPane} TextPane */

export class Search {
  /**
   * @param {TextPane[]} panes
   * @param {(unit: number, pane: TextPane) => void} choose
   */
  constructor(panes, choose) {
    this.panes = panes;
    this.choose = choose;
    /** @type {{unit: number, pane: TextPane}[]} */
    this.hits = [];
    this.at = -1;
    this.input = make("input", "field", { type: "search", placeholder: "Find a word", "aria-label": "Find a word in the text" });
    this.count = make("span", "fine count", { "aria-live": "polite" });
    const step = (/** @type {string} */ word, /** @type {string} */ label, /** @type {number} */ by) => {
      const button = make("button", "quiet", { type: "button", "aria-label": label, title: label }, word);
      button.addEventListener("click", () => this.go(by));
      return button;
    };
    this.steps = make("span", "steps-of-search", { hidden: true }, step("↑", "The hit before", -1), step("↓", "The next hit", 1));
    this.root = make("div", "search", { role: "search" }, this.input, this.count, this.steps);
    this.input.addEventListener("input", () => this.again());
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      this.go(event.shiftKey ? -1 : 1);
      event.preventDefault();
    });
  }

  /** Search anew: the sought word or the text has changed. */
  again() {
    const sought = this.input.value;
    this.at = -1;
    this.hits = this.panes.flatMap((pane) => pane.search(sought).map(([unit]) => ({ unit, pane })));
    this.steps.hidden = !this.hits.length;
    this.say();
  }

  /** @param {number} by */
  go(by) {
    if (!this.hits.length) return;
    this.at = (this.at + by + this.hits.length + (this.at < 0 && by < 0 ? 1 : 0)) % this.hits.length;
    const { unit, pane } = this.hits[this.at];
    pane.reach(unit);
    this.choose(unit, pane);
    this.say();
  }

  say() {
    const found = this.hits.length.toLocaleString("en");
    if (!this.input.value.trim()) this.count.textContent = "";
    else if (!this.hits.length) this.count.textContent = "not in the text";
    else this.count.textContent = this.at < 0 ? `${found} found` : `${this.at + 1} of ${found}`;
  }
}
