// Where no run is open: type or paste a text, press, see.

import { make } from "./dom.js";
import { visible } from "./units.js";
import { isCancelled } from "./source.js";
import { INITIAL } from "./state.js";

/** @typedef {import("./app.js").App} App */

const EXAMPLES = [
  ["A pronoun", "The animal did not cross the road because it was too tired."],
  ["Two trophies", "The trophy does not fit in the suitcase because it is too big.\nThe trophy does not fit in the suitcase because it is too small."],
  ["Five scripts", "Attention is all you need. 注意力就是你所需要的一切。 الانتباه هو كل ما تحتاجه. ध्यान ही सब कुछ है। Внимание — это всё, что вам нужно. 🙂"],
  ["A list that repeats", "red blue green\nred blue green\nred blue"],
];

export class StartView {
  /** @param {HTMLElement} root @param {App} app */
  constructor(root, app) {
    this.app = app;
    /** @type {AbortController | null} */
    this.reading = null;
    this.text = make("textarea", "field", { rows: 9, placeholder: "Type or paste a text", "aria-label": "The text to read", spellcheck: "false", dir: "auto" });
    this.go = make("button", "primary", { type: "submit" }, "See what it reads");
    this.stop = make("button", "chip", { type: "button", hidden: true }, "stop");
    this.progress = make("p", "fine", { role: "status" });
    this.error = make("p", "error", { role: "alert", hidden: true });
    this.open = make("div", "open-runs");
    const examples = EXAMPLES.map(([name, text]) => {
      const button = make("button", "chip", { type: "button" }, name);
      button.addEventListener("click", () => {
        this.text.value = text;
        this.text.focus();
      });
      return button;
    });
    const title = make("h2", "", {}, "See what a model reads in your text");
    const form = make("form", "start-form", {}, title, this.text, make("div", "bar", {}, make("span", "fine", {}, "or try"), ...examples), make("div", "bar", {}, this.go, this.stop), this.progress, this.error);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.read();
    });
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void this.read();
    });
    this.stop.addEventListener("click", () => this.reading?.abort());
    root.append(form, this.open);
  }

  show() {
    const runs = this.app.runs.map(({ id, title, model, tokens }) => {
      const button = make("button", "run", { type: "button" }, make("bdi", "", {}, visible(title) || id), make("span", "fine", {}, ` ${model}, ${tokens.toLocaleString("en")} tokens`));
      button.addEventListener("click", () => void this.enter(id).catch((error) => this.app.say(error)));
      return button;
    });
    this.open.replaceChildren(...(runs.length ? [make("h3", "", {}, "Open now"), ...runs] : []));
  }

  hide() {
    this.reading?.abort();
  }

  async read() {
    if (this.reading) return;
    if (!this.text.value.trim()) return this.fail("The text is empty; type or paste something to read.");
    this.error.hidden = true;
    this.reading = new AbortController();
    const began = Date.now();
    const tick = () => (this.progress.textContent = `Reading ${this.text.value.length.toLocaleString("en")} characters … ${Math.round((Date.now() - began) / 1000)} s`);
    const ticking = setInterval(tick, 1000);
    tick();
    this.go.disabled = true;
    this.stop.hidden = false;
    try {
      const run = await this.app.source.read(this.text.value, null, this.reading.signal);
      this.app.runs = await this.app.source.runs();
      await this.enter(run);
    } catch (error) {
      if (!isCancelled(error)) this.fail(error instanceof Error ? error.message : String(error));
    } finally {
      clearInterval(ticking);
      this.progress.textContent = "";
      this.go.disabled = false;
      this.stop.hidden = true;
      this.reading = null;
    }
  }

  /** Open a run as it wants to be opened. @param {string} run */
  async enter(run) {
    const { opening } = await this.app.about(run);
    this.app.set({ ...INITIAL, theme: this.app.state.theme, run, ...opening });
  }

  /** @param {string} sentence */
  fail(sentence) {
    this.error.textContent = sentence;
    this.error.hidden = false;
  }
}
