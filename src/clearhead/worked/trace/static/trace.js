"use strict";
// data-at is a cell's own place, step.head.row.column; data-of names the places that made it, with
// * for every row or column.
const cells = [...document.querySelectorAll("td[data-at]")];
const steps = new Map();
for (const cell of cells) {
  const place = cell.dataset.at.split(".");
  const key = place[0] + "." + place[1];
  if (!steps.has(key)) steps.set(key, []);
  steps.get(key).push([place[2], place[3], cell]);
}
const told = document.getElementById("arithmetic");
let lit = [];

function show(cell) {
  for (const old of lit) old.classList.remove("made", "here");
  lit = [cell];
  cell.classList.add("here");
  for (const of of cell.dataset.of.split(" ").filter(Boolean)) {
    const [step, head, row, column] = of.split(".");
    for (const [i, j, other] of steps.get(step + "." + head) ?? []) {
      if ((row === "*" || row === i) && (column === "*" || column === j)) {
        other.classList.add("made");
        lit.push(other);
      }
    }
  }
  told.textContent = cell.dataset.told;
}

document.addEventListener("mouseover", (event) => {
  const cell = event.target.closest("td[data-at]");
  if (cell) show(cell);
});
document.addEventListener("focusin", (event) => {
  const cell = event.target.closest("td[data-at]");
  if (cell) show(cell);
});

// One cell is in the tab order; the arrow keys move from there.
if (cells.length) cells[0].tabIndex = 0;
document.addEventListener("keydown", (event) => {
  const cell = document.activeElement.closest("td[data-at]");
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const step = steps[event.key];
  if (!cell || !step) return;
  event.preventDefault();
  let next = null;
  if (step[1]) {
    next = cell;
    do next = step[1] > 0 ? next.nextElementSibling : next.previousElementSibling;
    while (next && !next.dataset.at);
  } else {
    const at = cell.cellIndex;
    const rows = [...document.querySelectorAll("tr")];
    let row = rows.indexOf(cell.parentElement);
    do {
      row += step[0];
      const found = rows[row]?.cells;
      next = found && [...found].filter((c) => c.dataset.at).slice(0, at).pop();
    } while (row > 0 && row < rows.length && !next);
  }
  if (!next) return;
  cell.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});

document.documentElement.dataset.ready = "yes";
