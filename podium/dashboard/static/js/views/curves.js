// Curves: highlights, pinned charts and every metric by its family; several runs in one chart.

import { get } from "../api.js";
import { ChartGrid } from "../chart/chart-grid.js";
import { debounce, el, replace, throttle } from "../dom.js";
import { count } from "../format.js";
import { remember } from "../router.js";
import { preference, setPreference } from "../store.js";

const HIGHLIGHTS = [
  /^critic\/score\/mean$/,
  /^val-core\/.*\/mean@\d+$/,
  /^actor\/(reward_kl_penalty|kl_loss|ppo_kl)$/,
  /^actor\/entropy$/,
  /^response_length\/mean$/,
  /^actor\/grad_norm$/,
  /^critic\/vf_loss$/,
  /^perf\/throughput$/,
];
const MAX_MATCHES = 60;

export const curvesView = {
  title: "Curves",
  open(root, { runs, params }) {
    const view = new Curves(root, runs, params);
    return { changed: (ids) => runs.some((id) => ids.has(id)) && view.update(), close: () => view.close() };
  },
};

class Curves {
  #names = [];
  #opened = new Set();

  constructor(root, runs, params) {
    this.runs = runs;
    this.filter = params.get("q") || "";
    this.pinned = new Set(preference("pinned", []));
    const range = params.get("x")?.split("-").map(Number);
    const settings = {
      smooth: Number(params.get("smooth") ?? preference("smooth", 0)),
      log: params.get("log") === "1",
      range: range?.length === 2 && range.every(Number.isFinite) ? range : null,
    };
    this.grid = new ChartGrid(runs, settings, {
      onZoom: (to) => this.#zoom(to),
      onPin: (metric) => this.#pin(metric),
      isPinned: (metric) => this.pinned.has(metric),
    });
    this.body = el("div", { class: "sections" }, el("p", { class: "empty", role: "status" }, "Reading…"));
    replace(root, el("h1", { class: "hidden-text" }, "Curves"), this.#toolbar(settings), this.body);
    this.update = throttle(() => this.#update(), 900);
    this.#update();
  }

  close() {
    this.grid.close();
  }

  #toolbar({ smooth, log }) {
    const filter = el("input", { type: "search", placeholder: "Filter metrics", title: "Words, or a regular expression: kl entropy, ^val", "aria-label": "Filter metrics", value: this.filter });
    filter.addEventListener("input", debounce(() => {
      this.filter = filter.value.trim();
      remember({ q: this.filter });
      this.#draw();
    }, 150));
    const shown = el("output", {}, smooth ? smooth.toFixed(2) : "off");
    const slider = el("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: smooth, "aria-label": "Smoothing" });
    const apply = debounce(() => {
      const weight = Number(slider.value);
      setPreference("smooth", weight);
      remember({ smooth: weight || null });
      this.grid.change({ smooth: weight });
    }, 120);
    slider.addEventListener("input", () => {
      shown.textContent = Number(slider.value) ? Number(slider.value).toFixed(2) : "off";
      apply();
    });
    const scale = el("input", { type: "checkbox", checked: log });
    scale.addEventListener("change", () => {
      remember({ log: scale.checked });
      this.grid.change({ log: scale.checked });
    });
    this.reset = el("button", { type: "button", class: "button", onclick: () => this.#zoom(null) }, "Reset zoom");
    this.reset.hidden = !this.grid.settings.range;
    this.zoomed = el("span", { class: "muted" });
    this.#showZoom();
    return el(
      "div",
      { class: "toolbar" },
      filter,
      el("label", { class: "control" }, "Smoothing", slider, shown),
      el("label", { class: "control" }, scale, "Log scale"),
      el("span", { class: "grow" }),
      this.zoomed,
      this.reset,
    );
  }

  #zoom(range) {
    if (range === null && !this.grid.settings.range) return;
    remember({ x: range ? range.join("-") : null });
    this.grid.change({ range });
    this.#showZoom();
  }

  #showZoom() {
    const { range } = this.grid.settings;
    this.reset.hidden = !range;
    this.zoomed.textContent = range ? `steps ${count(range[0])} to ${count(range[1])}` : "";
  }

  #pin(metric) {
    if (!this.pinned.delete(metric)) this.pinned.add(metric);
    setPreference("pinned", [...this.pinned]);
    this.#draw();
  }

  async #update() {
    try {
      const answer = await get("metrics", { run: this.runs });
      const names = [...new Set(Object.values(answer).flat())].sort();
      if (names.join() === this.#names.join() && names.length) return this.grid.refresh();
      this.#names = names;
      this.#draw();
    } catch (error) {
      if (!this.#names.length) replace(this.body, el("p", { class: "empty" }, `The metrics could not be read: ${error.message}`));
    }
  }

  #draw() {
    this.grid.clear();
    if (!this.#names.length) return replace(this.body, el("p", { class: "empty" }, "No metrics yet. They appear after the first step."));
    replace(this.body, this.filter ? this.#matches() : this.#families());
  }

  #matches() {
    const found = this.#names.filter((name) => matches(name, this.filter));
    if (!found.length) return el("p", { class: "empty" }, `No metric matches “${this.filter}”.`);
    const more = found.length > MAX_MATCHES ? `, the first ${MAX_MATCHES} are shown` : "";
    return [el("h2", {}, `${count(found.length)} of ${count(this.#names.length)} metrics${more}`), this.grid.section(found.slice(0, MAX_MATCHES))];
  }

  #families() {
    const pinned = this.#names.filter((name) => this.pinned.has(name));
    const highlights = HIGHLIGHTS.flatMap((pattern) => this.#names.filter((name) => pattern.test(name)).slice(0, 4));
    const families = groupBy(this.#names, family);
    return [
      pinned.length > 0 && [el("h2", {}, "Pinned"), this.grid.section(pinned)],
      highlights.length > 0 && [el("h2", {}, "Highlights"), this.grid.section(highlights)],
      el("h2", {}, `All ${count(this.#names.length)} metrics`),
      [...families].map(([name, metrics]) => this.#family(name, metrics)),
    ];
  }

  #family(name, metrics) {
    const details = el("details", { class: "family", open: this.#opened.has(name) }, el("summary", {}, name, el("span", { class: "badge" }, count(metrics.length))));
    const fill = () => details.children.length < 2 && details.append(this.grid.section(metrics));
    if (details.open) fill();
    details.addEventListener("toggle", () => {
      if (!details.open) return this.#opened.delete(name);
      this.#opened.add(name);
      fill();
    });
    return details;
  }
}

function family(name) {
  return name.includes("/") ? name.slice(0, name.indexOf("/")) : "other";
}

function groupBy(items, key) {
  const groups = new Map();
  for (const item of items) groups.set(key(item), [...(groups.get(key(item)) ?? []), item]);
  return groups;
}

// Words that all occur, or a regular expression where the text is one.
function matches(name, filter) {
  if (/[\^$*|\\]/.test(filter)) {
    try {
      return new RegExp(filter, "i").test(name);
    } catch {
      // Half-typed: fall through to words.
    }
  }
  return filter.toLowerCase().split(/\s+/).every((word) => name.toLowerCase().includes(word));
}
