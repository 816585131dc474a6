// A chart of curves over steps: grid, lines, a read-out that follows the pointer or the arrow keys, zoom by drag.
// Charts that share a `group` show each other's cross-hair.

import { announce, el, replace, svg } from "../dom.js";
import { tick } from "../format.js";
import { Readout } from "./readout.js";
import { linear, logarithmic, nearest, valueRange } from "./scale.js";

const MARGIN = { top: 8, right: 12, bottom: 24, left: 52 };
const DOTS_UP_TO = 40;

export class LineChart {
  #series = [];
  #options = { log: false, range: null };
  #scales = null;
  #hover = null;
  #drag = null;

  // series: {label, colour, steps, values, smoothSteps, smooth}
  constructor(name, group, onZoom) {
    this.name = name;
    this.group = group;
    this.onZoom = onZoom;
    this.svg = svg("svg", { "aria-hidden": "true", class: "plot-svg" });
    this.readout = new Readout();
    this.element = el("div", { class: "plot", tabindex: 0, role: "group", "aria-label": name }, this.svg, this.readout.element);
    this.#listen();
    this.resizes = new ResizeObserver(() => this.draw());
    this.resizes.observe(this.element);
    group.add(this);
  }

  close() {
    this.resizes.disconnect();
    this.group.delete(this);
  }

  show(series, options) {
    this.#series = series;
    this.#options = options;
    this.element.setAttribute("aria-label", this.#summary());
    this.draw();
  }

  draw() {
    const width = this.element.clientWidth;
    const height = this.element.clientHeight;
    if (!width || !height) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.#scales = this.#makeScales(width, height);
    if (!this.#scales) {
      const reason = this.#series.length ? "no values that can be drawn" : "no values yet";
      replace(this.svg, svg("text", { x: width / 2, y: height / 2, class: "plot-empty" }, reason));
      return;
    }
    this.cursor = svg("g", { class: "cursor" });
    this.selection = svg("rect", { class: "selection", y: MARGIN.top, height: height - MARGIN.top - MARGIN.bottom, width: 0 });
    replace(this.svg, this.#grid(width, height), this.#lines(), this.selection, this.cursor);
    if (this.#hover !== null) this.#point(this.#hover, false);
  }

  #makeScales(width, height) {
    const { log, range } = this.#options;
    const shown = this.#series.filter((one) => one.steps.length);
    const values = valueRange(shown.map((one) => inRange(one, range)), log);
    if (!values) return null;
    const first = range ? range[0] : Math.min(...shown.map((one) => one.steps[0]));
    const last = range ? range[1] : Math.max(...shown.map((one) => one.steps.at(-1)));
    const room = first === last ? 1 : 0;
    const make = log ? logarithmic : linear;
    return {
      x: linear(first - room, last + room, MARGIN.left, width - MARGIN.right),
      y: make(...values, height - MARGIN.bottom, MARGIN.top),
      width,
      height,
    };
  }

  #grid(width, height) {
    const { x, y } = this.#scales;
    const group = svg("g", { class: "grid" });
    const rows = y.ticks(Math.max(3, Math.floor(height / 40)));
    for (const value of rows.ticks) {
      const at = y.at(value);
      group.append(
        svg("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }),
        svg("text", { x: MARGIN.left - 8, y: at, class: "tick-y" }, tick(value, rows.step)),
      );
    }
    const columns = x.ticks(Math.max(3, Math.floor(width / 80)));
    for (const value of columns.ticks.filter(Number.isInteger)) {
      group.append(svg("text", { x: x.at(value), y: height - 6, class: "tick-x" }, tick(value, 1)));
    }
    return group;
  }

  #lines() {
    const { width, height } = this.#scales;
    const id = `clip-${Math.random().toString(36).slice(2)}`;
    const area = { x: MARGIN.left, y: 0, width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.bottom + 2 };
    const group = svg("g", { "clip-path": `url(#${id})` }, svg("clipPath", { id }, svg("rect", area)));
    for (const one of this.#series) {
      const colour = `series-${one.colour}`;
      group.append(this.#path(one.steps, one.values, `line ${colour} ${one.smooth ? "line-raw" : ""}`));
      if (one.smooth) group.append(this.#path(one.smoothSteps, one.smooth, `line ${colour}`));
      if (one.steps.length <= DOTS_UP_TO) group.append(this.#dots(one, colour));
    }
    return group;
  }

  #path(steps, values, className) {
    const { x, y } = this.#scales;
    const parts = [];
    let isDown = false;
    for (let index = 0; index < steps.length; index += 1) {
      const at = values[index] === null ? NaN : y.at(values[index]);
      if (Number.isNaN(at)) {
        isDown = false;
        continue;
      }
      parts.push(`${isDown ? "L" : "M"}${x.at(steps[index]).toFixed(1)} ${at.toFixed(1)}`);
      isDown = true;
    }
    return svg("path", { d: parts.join(""), class: className });
  }

  #dots(one, colour) {
    const { x, y } = this.#scales;
    const group = svg("g", { class: `dots ${colour}` });
    one.steps.forEach((step, index) => {
      const at = one.values[index] === null ? NaN : y.at(one.values[index]);
      if (!Number.isNaN(at)) group.append(svg("circle", { cx: x.at(step), cy: at, r: 2 }));
    });
    return group;
  }

  // ---- reading out

  #listen() {
    const target = this.element;
    target.addEventListener("pointermove", (event) => this.#move(event));
    target.addEventListener("pointerdown", (event) => this.#press(event));
    target.addEventListener("pointerup", (event) => this.#release(event));
    target.addEventListener("pointercancel", () => this.#cancelDrag());
    target.addEventListener("pointerleave", () => !this.#drag && this.#leave());
    target.addEventListener("dblclick", () => this.onZoom(null));
    target.addEventListener("keydown", (event) => this.#key(event));
    target.addEventListener("blur", () => this.#leave());
  }

  #stepAt(event) {
    const left = this.element.getBoundingClientRect().left;
    return this.#scales.x.invert(event.clientX - left);
  }

  #move(event) {
    if (!this.#scales) return;
    if (this.#drag) return this.#stretch(event);
    this.#pointAll(this.#stepAt(event));
  }

  #pointAll(step) {
    for (const chart of this.group) chart.#point(step, chart === this);
  }

  // Put the cross-hair on the step with data that is nearest; values beside it where the reader is.
  #point(step, withValues) {
    if (!this.#scales) return;
    const rows = this.#series
      .filter((one) => one.steps.length)
      .map((one) => {
        const index = nearest(one.steps, step);
        const soft = one.smooth ? one.smooth[nearest(one.smoothSteps, one.steps[index])] : null;
        return { ...one, step: one.steps[index], value: one.values[index], soft };
      });
    if (!rows.length) return;
    const nearestRow = rows.reduce((a, b) => (Math.abs(b.step - step) < Math.abs(a.step - step) ? b : a));
    this.#hover = nearestRow.step;
    const { x, y, height } = this.#scales;
    const at = x.at(this.#hover);
    const marks = rows
      .filter((row) => row.value !== null && !Number.isNaN(y.at(row.value)))
      .map((row) => svg("circle", { cx: x.at(row.step), cy: y.at(row.soft ?? row.value), r: 3.5, class: `series-${row.colour}` }));
    replace(this.cursor, svg("line", { x1: at, x2: at, y1: MARGIN.top, y2: height - MARGIN.bottom }), marks);
    if (withValues) this.readout.show(this.#hover, rows, at);
    else this.readout.hide();
  }

  #leave() {
    for (const chart of this.group) chart.#clear();
  }

  #clear() {
    this.#hover = null;
    if (this.cursor) replace(this.cursor);
    this.readout.hide();
  }

  // ---- zoom

  #press(event) {
    if (!this.#scales || event.button !== 0 || event.pointerType === "touch") return;
    this.#drag = { x: event.clientX, step: this.#stepAt(event) };
    this.element.setPointerCapture(event.pointerId);
  }

  #stretch(event) {
    const a = this.#scales.x.at(this.#drag.step);
    const b = this.#scales.x.at(this.#stepAt(event));
    this.selection.setAttribute("x", Math.min(a, b));
    this.selection.setAttribute("width", Math.abs(b - a));
  }

  #release(event) {
    if (!this.#drag) return;
    const { x, step } = this.#drag;
    this.#cancelDrag();
    if (Math.abs(event.clientX - x) < 6) return;
    const ends = [step, this.#stepAt(event)].sort((a, b) => a - b);
    this.#zoomTo(Math.floor(ends[0]), Math.ceil(ends[1]));
  }

  #cancelDrag() {
    this.#drag = null;
    this.selection?.setAttribute("width", 0);
  }

  #zoomTo(first, last) {
    if (last > first) this.onZoom([Math.max(0, first), last]);
  }

  #key(event) {
    if (!this.#scales) return;
    const longest = this.#series.reduce((a, b) => (b.steps.length > a.steps.length ? b : a), { steps: [] });
    const { steps } = longest;
    if (!steps.length) return;
    const index = this.#hover === null ? steps.length : nearest(steps, this.#hover);
    const stride = event.shiftKey ? 10 : 1;
    const moves = { ArrowLeft: index - stride, ArrowRight: index + stride, Home: 0, End: steps.length - 1 };
    if (event.key in moves) {
      const to = Math.max(0, Math.min(steps.length - 1, moves[event.key]));
      this.#pointAll(steps[to]);
      announce(this.readout.text());
    } else if (event.key === "Escape") {
      this.#leave();
      this.onZoom(null);
    } else if (event.key === "+" || event.key === "-") {
      this.#zoomAround(steps[Math.min(index, steps.length - 1)], event.key === "+" ? 0.5 : 2);
    } else return;
    event.preventDefault();
  }

  #zoomAround(step, factor) {
    const { x, width } = this.#scales;
    const [first, last] = [x.invert(MARGIN.left), x.invert(width - MARGIN.right)];
    const half = ((last - first) * factor) / 2;
    this.#zoomTo(Math.floor(step - half), Math.ceil(step + half));
  }

  #summary() {
    const parts = this.#series.map((one) => `${one.label} ends at ${one.last} after ${one.numPoints} values`);
    return `${this.name}. ${parts.join("; ") || "no values yet"}. Arrow keys read values, plus and minus zoom.`;
  }
}

function inRange(one, range) {
  if (!range) return one.values;
  return one.values.filter((_, index) => one.steps[index] >= range[0] && one.steps[index] <= range[1]);
}
