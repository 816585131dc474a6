// The small table beside the pointer: the step, and what each curve says there.

import { el, replace } from "../dom.js";
import { count, exact } from "../format.js";

const MAX_ROWS = 12;

export class Readout {
  constructor() {
    this.element = el("div", { class: "readout", hidden: true });
  }

  show(step, rows, x, width) {
    const byValue = [...rows].sort((a, b) => (b.soft ?? b.value ?? -Infinity) - (a.soft ?? a.value ?? -Infinity));
    const more = byValue.length - MAX_ROWS;
    replace(
      this.element,
      el("div", { class: "readout-step" }, `step ${count(step)}`),
      byValue.slice(0, MAX_ROWS).map((row) => line(row, step)),
      more > 0 && el("div", { class: "muted" }, `and ${more} more`),
    );
    place(this.element, x, width);
  }

  hide() {
    this.element.hidden = true;
  }

  text() {
    return [...this.element.children].map((child) => child.textContent).join(", ");
  }
}

// Beside the cross-hair, on the side with room, and never outside the chart where that can be helped.
export function place(element, x, width) {
  element.hidden = false;
  const size = element.offsetWidth;
  const right = x + 12;
  const left = x - 12 - size;
  const at = right + size <= width || left < 0 ? Math.min(right, Math.max(0, width - size)) : left;
  element.style.left = `${at}px`;
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
