// What a picture of the map is made of, to be chosen: heads, units, pooling, colours, what is left out.

import { make, Switch } from "./dom.js";
import { inUnits } from "./layout.js";
import { HeadPicker } from "./picker.js";

/** @typedef {import("./state.js").State} State */

const UNITS = /** @type {const} */ ([["tokens", "tokens"], ["words", "words"], ["sentences", "sentences"], ["documents", "documents"]]);

/** What rows and columns are. What is chosen stays chosen, in the new units. */
export class UnitSwitch {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    this.app = app;
    this.switch = new Switch("Rows and columns", UNITS, (unit) => {
      if (this.about && unit !== app.state.unit) app.set(inUnits(this.about, app.state, unit));
    });
    this.root = this.switch.root;
  }

  /** @param {import("./source.js").About} about @param {State} state */
  update(about, state) {
    this.about = about;
    this.switch.update(state.unit);
    for (const [unit, button] of this.switch.buttons) button.hidden = !about.units.includes(unit);
  }
}

export class Controls {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    this.app = app;
    this.picker = new HeadPicker(app);
    this.unit = new UnitSwitch(app);
    this.pool = new Switch(
      "What stands for many weights",
      [["mean", "mean", "A pixel far out is the mean of its weights"], ["max", "largest", "A pixel far out is the largest of its weights: one strong weight stays visible"]],
      (pool) => app.set({ pool }),
    );
    this.scale = new Switch("Colour scale", [["linear", "linear"], ["root", "square root"], ["log", "logarithm"]], (scale) => app.set({ scale }));
    this.special = make("input", "", { type: "checkbox" });
    this.sinks = make("input", "", { type: "checkbox" });
    this.special.addEventListener("change", () => this.leave({ special: this.special.checked }));
    this.sinks.addEventListener("change", () => this.leave({ sinks: this.sinks.checked }));
    const label = (/** @type {HTMLInputElement} */ box, /** @type {string} */ what) => make("label", "", {}, box, what);
    const leave = make("div", "leave", { role: "group", "aria-label": "Leave out, and let what is left of each row sum to one" }, make("span", "", {}, "leave out"), label(this.special, "special tokens"), label(this.sinks, "sinks"));
    this.root = make("div", "bar controls", {}, this.picker.root, this.unit.root, this.pool.root, this.scale.root, leave);
  }

  /**
   * @param {import("./source.js").About} about
   * @param {State} state
   */
  update(about, state) {
    this.picker.update(about, state);
    this.unit.update(about, state);
    this.pool.update(state.pool);
    this.scale.update(state.scale);
    this.special.checked = state.leave.special;
    this.sinks.checked = state.leave.sinks;
  }

  /** @param {Partial<import("./source.js").Leave>} change */
  leave(change) {
    this.app.set({ leave: { ...this.app.state.leave, ...change } });
  }
}
