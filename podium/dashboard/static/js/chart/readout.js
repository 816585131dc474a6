// The small table beside the pointer: the step, and what each curve says there.

import { el, replace } from "../dom.js";
import { count, exact } from "../format.js";

const MAX_ROWS = 12;

export class Readout {
  constructor() {
    this.element = el("div", { class: "readout", hidden: true });
  }

  show(step, rows, x) {
    const byValue = [...rows].sort((a, b) => (b.soft ?? b.value ?? -Infinity) - (a.soft ?? a.value ?? -Infinity));
    const more = byValue.length - MAX_ROWS;
    replace(
      this.element,
      el("div", { class: "readout-step" }, `step ${count(step)}`),
      byValue.slice(0, MAX_ROWS).map((row) => line(row, step)),
      more > 0 && el("div", { class: "muted" }, `and ${more} more`),
    );
    place(this.element, x);
  }

  hide() {
    this.element.hidden = true;
  }

  text() {
    return [...this.element.children].map((child) => child.textContent).join(", ");
  }
}

// Right of the cross-hair, over the next chart if need be; left of it where the window ends; never outside the window.
export function place(element, x) {
  element.hidden = false;
  const size = element.offsetWidth;
  const origin = element.parentElement.getBoundingClientRect().left;
  const room = document.documentElement.clientWidth - origin - 8;
  const at = x + 12 + size <= room ? x + 12 : x - 12 - size;
  element.style.left = `${Math.max(8 - origin, Math.min(at, room - size))}px`;
}

function line(row, step) {
  const elsewhere = row.step !== step ? ` at ${count(row.step)}` : "";
  return el(
    "div",
    { class: "readout-row" },
    el("span", { class: `swatch series-${row.colour}` }),
    el("span", { class: "readout-name" }, row.label, elsewhere && el("span", { class: "muted" }, elsewhere)),
    " ",
    el("span", { class: "readout-value" }, exact(row.soft ?? row.value)),
    row.soft !== null && row.soft !== undefined && el("span", { class: "muted" }, ` (${exact(row.value)})`),
  );
}
