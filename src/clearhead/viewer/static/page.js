// The page of one run: the app, fed by the weights that stand in the page.

import { mount } from "./app.js";
import { Embedded } from "./embedded.js";

const root = /** @type {HTMLElement} */ (document.getElementById("app"));
try {
  const data = JSON.parse(document.getElementById("run")?.textContent ?? "");
  mount(root, await Embedded.open(data), { link: true });
} catch (error) {
  root.textContent = `This page could not be drawn: ${error}`;
}
