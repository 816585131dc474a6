// Bars of stacked parts over steps: seconds per phase. A bar can be picked by pointer or arrow keys.

import { el, replace, svg } from "../dom.js";
import { count, seconds, tick } from "../format.js";
import { phaseClass } from "../phases.js";
import { place } from "./readout.js";
import { linear } from "./scale.js";

const MARGIN = { top: 8, right: 8, bottom: 24, left: 48 };

export class StackedBars {
  // onPick(step): a bar was chosen.
  constructor(label, onPick) {
    this.onPick = onPick;
    this.data = null;
    this.svg = svg("svg", { "aria-hidden": "true", class: "plot-svg" });
    this.tip = el("div", { class: "readout", hidden: true });
    this.element = el("div", { class: "plot plot-bars", tabindex: 0, role: "group", "aria-label": label }, this.svg, this.tip);
    this.element.addEventListener("pointermove", (event) => this.#hover(this.#indexAt(event)));
    this.element.addEventListener("pointerleave", () => this.#hover(null));
    this.element.addEventListener("click", (event) => this.#pick(this.#indexAt(event)));
    this.element.addEventListener("keydown", (event) => this.#key(event));
    this.resizes = new ResizeObserver(() => this.draw());
    this.resizes.observe(this.element);
  }

  close() {
    this.resizes.disconnect();
  }

  // data: {first: [], last: [], phases: {name: [seconds]}}; names: from the bottom up; picked: a step
  show(data, names, picked) {
    this.data = data;
    this.names = names;
    this.picked = picked;
    this.draw();
  }

  draw() {
    const width = this.element.clientWidth;
    const height = this.element.clientHeight;
    if (!this.data || !width || !height) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const bars = this.data.first.length;
    if (!bars) return replace(this.svg, svg("text", { x: width / 2, y: height / 2, class: "plot-empty" }, "no steps yet"));
    const totals = this.data.first.map((_, index) => this.names.reduce((sum, name) => sum + this.#value(name, index), 0));
    this.x = linear(0, bars, MARGIN.left, width - MARGIN.right);
    const y = linear(0, Math.max(...totals) * 1.05 || 1, height - MARGIN.bottom, MARGIN.top);
    replace(this.svg, this.#grid(y, width, height), this.#bars(y), this.#marks(height));
  }

  #value(name, index) {
    return this.data.phases[name]?.[index] ?? 0;
  }

  #grid(y, width, height) {
    const group = svg("g", { class: "grid" });
    const rows = y.ticks(4);
    for (const value of rows.ticks) {
      group.append(
        svg("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y.at(value), y2: y.at(value) }),
        svg("text", { x: MARGIN.left - 8, y: y.at(value), class: "tick-y" }, `${tick(value, rows.step)} s`),
      );
    }
    const bars = this.data.first.length;
    const stride = [1, 2, 5, 10, 20, 50, 100].find((size) => bars / size <= width / 70) ?? 200;
    for (let index = stride - 1; index < bars; index += stride) {
      group.append(svg("text", { x: this.x.at(index + 0.5), y: height - 6, class: "tick-x" }, tick(this.data.first[index], 1)));
    }
    return group;
  }

  #bars(y) {
    const group = svg("g");
    const width = this.x.at(1) - this.x.at(0);
    const gap = width > 4 ? 1 : 0;
    this.data.first.forEach((_, index) => {
      let below = 0;
      for (const name of this.names) {
        const value = this.#value(name, index);
        if (!value) continue;
        const [bottom, top] = [y.at(below), y.at(below + value)];
        const shape = { x: this.x.at(index), y: top, width: Math.max(0.5, width - gap), height: bottom - top };
        group.append(svg("rect", { ...shape, class: phaseClass(name) }));
        below += value;
      }
    });
    return group;
  }

  #marks(height) {
    const index = this.data.first.findIndex((first, at) => this.picked >= first && this.picked <= this.data.last[at]);
    if (index < 0) return null;
    const [left, right] = [this.x.at(index), this.x.at(index + 1)];
    return svg("rect", { class: "picked", x: left - 1, y: MARGIN.top, width: right - left + 1, height: height - MARGIN.top - MARGIN.bottom });
  }

  #indexAt(event) {
    if (!this.data?.first.length) return null;
    const left = this.element.getBoundingClientRect().left;
    const index = Math.floor(this.x.invert(event.clientX - left));
    return index >= 0 && index < this.data.first.length ? index : null;
  }

  #hover(index) {
    this.tip.hidden = index === null;
    if (index === null) return;
    const { first, last } = this.data;
    const title = first[index] === last[index] ? `step ${count(first[index])}` : `steps ${count(first[index])} to ${count(last[index])}, mean`;
    const rows = [...this.names].reverse().filter((name) => this.#value(name, index) > 0);
    replace(
      this.tip,
      el("div", { class: "readout-step" }, title),
      rows.map((name) =>
        el(
          "div",
          { class: "readout-row" },
          el("span", { class: `swatch ${phaseClass(name)}` }),
          el("span", { class: "readout-name" }, name),
          " ",
          el("span", { class: "readout-value" }, seconds(this.#value(name, index))),
        ),
      ),
    );
    place(this.tip, this.x.at(index + 0.5));
  }

  #pick(index) {
    if (index !== null) this.onPick(this.data.last[index]);
  }

  #key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || !this.data?.first.length) return;
    event.preventDefault();
    const at = this.data.first.findIndex((first, index) => this.picked >= first && this.picked <= this.data.last[index]);
    this.#pick(Math.max(0, Math.min(this.data.first.length - 1, (at < 0 ? this.data.first.length : at) + move)));
  }
}
