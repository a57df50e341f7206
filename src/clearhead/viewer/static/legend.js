// What the colours mean, in numbers.

import { css } from "./colour.js";
import { make } from "./dom.js";
import { brief } from "./tint.js";

export class Legend {
  constructor() {
    this.canvas = make("canvas", "", { width: 160, height: 1, "aria-hidden": "true" });
    this.low = make("span", "");
    this.middle = make("span", "middle");
    this.high = make("span", "");
    this.hatch = make("span", "hatch", { hidden: true }, make("i", ""), "hidden by the mask");
    this.note = make("span", "note");
    const bar = make("div", "ramp", {}, this.canvas, make("div", "ends", {}, this.low, this.middle, this.high));
    this.root = make("div", "legend", { role: "group", "aria-label": "Colour scale" }, bar, this.hatch, this.note);
    this.shown = "";
  }

  /**
   * @param {import("./tint.js").Scale} scale
   * @param {import("./colour.js").Palette} palette
   * @param {boolean} hidden  whether the mask hides anything that is seen
   * @param {string} note  what a pixel stands for
   */
  update(scale, palette, hidden, note) {
    const now = `${scale.name} ${palette.dark} ${hidden} ${note}`;
    if (now === this.shown) return;
    this.shown = now;
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    for (let x = 0; x < 160; x++) {
      context.fillStyle = css(palette.at(x / 159));
      context.fillRect(x, 0, 1, 1);
    }
    this.low.textContent = scale.kind === "log" ? `≤ ${brief(scale.floor)}` : "0";
    this.middle.textContent = brief(scale.weight(0.5));
    this.high.textContent = brief(scale.top);
    this.hatch.hidden = !hidden;
    this.note.textContent = note;
  }
}
