// Layers x heads as small multiples: one thumbnail a head, each to be chosen.

import { colour } from "./colour.js";

const THUMB = 64; // pixels a side at most; larger maps keep their maxima

export class HeadsView {
  /**
   * @param {HTMLElement} root
   * @param {import("./weights.js").Weights} weights
   * @param {(layer: number, head: number) => void} choose
   */
  constructor(root, weights, choose) {
    this.weights = weights;
    /** @type {HTMLButtonElement[]} */
    this.buttons = [];
    const { layers, heads } = weights.run;
    root.style.gridTemplateColumns = `auto repeat(${heads}, minmax(22px, 76px))`;
    root.append(label(""));
    for (let head = 0; head < heads; head++) root.append(label(String(head)));
    for (let layer = 0; layer < layers; layer++) {
      root.append(label(String(layer)));
      for (let head = 0; head < heads; head++) {
        const button = document.createElement("button");
        button.type = "button";
        button.className = "head";
        button.tabIndex = this.buttons.length ? -1 : 0;
        button.append(document.createElement("canvas"), document.createElement("i"));
        button.addEventListener("click", () => choose(layer, head));
        root.append(button);
        this.buttons.push(button);
      }
    }
    root.addEventListener("keydown", (event) => {
      const at = this.buttons.indexOf(/** @type {HTMLButtonElement} */ (event.target));
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: heads, ArrowUp: -heads }[event.key];
      if (at < 0 || !step || !this.buttons[at + step]) return;
      this.buttons[at + step].focus();
      event.preventDefault();
    });
  }

  /**
   * Draw every thumbnail: the maps between the words kept, on the one scale 0 to 1.
   * @param {number[]} kept
   * @param {(weight: number) => number} share
   */
  draw(kept, share) {
    const { run } = this.weights;
    this.buttons.forEach((button, at) => {
      const map = this.weights.words(Math.floor(at / run.heads), at % run.heads);
      picture(/** @type {HTMLCanvasElement} */ (button.firstChild), map, run.words.length, kept, share);
    });
  }

  /**
   * Mark the head on show, and under each head how strong the link asked about is there.
   * @param {number | null} chosen  layer * heads + head
   * @param {Float32Array} strength  one weight a head
   * @param {string} link  what the link is, in words
   */
  update(chosen, strength, link) {
    const { heads } = this.weights.run;
    this.buttons.forEach((button, at) => {
      button.setAttribute("aria-pressed", String(at === chosen));
      const name = `Layer ${Math.floor(at / heads)} head ${at % heads}`;
      button.setAttribute("aria-label", `${name}; ${link} ${strength[at].toFixed(3)}`);
      button.title = `${name}\n${link} ${this.weights.shown(strength[at])}`;
      /** @type {HTMLElement} */ (button.lastChild).style.width = `${100 * strength[at]}%`;
    });
  }
}

/** @param {string} text */
function label(text) {
  const span = document.createElement("span");
  span.className = "axis";
  span.textContent = text;
  return span;
}

/**
 * A map as pixels, `size` rows of `size`; several cells in one pixel show the largest.
 * @param {HTMLCanvasElement} canvas
 * @param {Float32Array} map
 * @param {number} size
 * @param {number[]} kept  the rows and columns to show
 * @param {(weight: number) => number} share
 */
export function picture(canvas, map, size, kept, share, largest = THUMB) {
  const side = Math.min(kept.length, largest);
  canvas.width = canvas.height = Math.max(side, 1);
  const cells = new Float32Array(side * side);
  kept.forEach((from, i) => {
    const row = Math.floor((i * side) / kept.length) * side;
    kept.forEach((to, j) => {
      const cell = row + Math.floor((j * side) / kept.length);
      cells[cell] = Math.max(cells[cell], map[from * size + to]);
    });
  });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(canvas.width, canvas.height);
  cells.forEach((weight, at) => image.data.set([...colour(share(weight)), 255], at * 4));
  context.putImageData(image, 0, 0);
}
