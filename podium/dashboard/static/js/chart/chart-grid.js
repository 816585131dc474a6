// Cards with a chart each, for a list of metrics. A card asks for its curves when it comes into sight, and again when its
// runs have new values; zoom, smoothing and scale are shared by all.

import { el, replace } from "../dom.js";
import { number } from "../format.js";
import { icon } from "../icons.js";
import { colourOf, label } from "../store.js";
import { CurveLoader } from "./curve-loader.js";
import { LineChart } from "./line-chart.js";

// Curves of so few points, such as validation, are shown as they are.
const FEW_POINTS = 40;

export class ChartGrid {
  #cards = new Map();
  #group = new Set();
  #sight = new IntersectionObserver((entries) => this.#seen(entries), { rootMargin: "150px" });

  // hooks: {onZoom(range), onPin(metric)?, isPinned(metric)?}
  constructor(runs, settings, hooks) {
    this.runs = runs;
    this.settings = settings;
    this.hooks = hooks;
    this.loader = new CurveLoader(runs);
  }

  close() {
    this.#sight.disconnect();
    this.loader.close();
    for (const card of this.#cards.values()) card.chart.close();
    this.#cards.clear();
  }

  // A grid of cards; each metric once per page.
  section(metrics) {
    return el("div", { class: "chart-grid" }, metrics.map((metric) => this.#card(metric).element));
  }

  clear() {
    for (const card of this.#cards.values()) {
      this.#sight.unobserve(card.element);
      card.chart.close();
    }
    this.#cards.clear();
  }

  change(settings) {
    Object.assign(this.settings, settings);
    this.refresh();
  }

  // Cards in sight load now, the others when they come into sight.
  refresh() {
    for (const card of this.#cards.values()) {
      card.isStale = true;
      if (card.isSeen) this.#load(card);
    }
  }

  #card(metric) {
    const chart = new LineChart(metric, this.#group, this.hooks.onZoom);
    const last = el("span", { class: "card-value" });
    const slash = metric.lastIndexOf("/") + 1;
    const heading = el("h3", { class: "card-title", title: metric }, el("span", { class: "muted" }, metric.slice(0, slash)), metric.slice(slash));
    const tools = el("span", { class: "card-tools" }, this.#pin(metric), this.#expander(metric));
    const element = el("section", { class: "card chart-card", "aria-label": metric }, el("div", { class: "card-head" }, heading, last, tools), chart.element);
    const card = { metric, chart, element, last, isStale: true, isSeen: false };
    this.#cards.set(`${metric} ${this.#cards.size}`, card);
    this.#sight.observe(element);
    return card;
  }

  #pin(metric) {
    const { onPin, isPinned } = this.hooks;
    if (!onPin) return null;
    const pressed = isPinned(metric);
    return el(
      "button",
      { type: "button", class: "icon-button", "aria-pressed": String(pressed), "aria-label": `Pin ${metric} to the top`, title: pressed ? "Unpin" : "Pin to the top", onclick: () => onPin(metric) },
      icon("star"),
    );
  }

  #expander(metric) {
    const button = el(
      "button",
      { type: "button", class: "icon-button", "aria-pressed": "false", "aria-label": `Enlarge ${metric}`, title: "Enlarge" },
      icon("expand"),
    );
    button.addEventListener("click", () => {
      const isWide = button.closest(".chart-card").classList.toggle("wide");
      button.setAttribute("aria-pressed", String(isWide));
    });
    return button;
  }

  #seen(entries) {
    for (const entry of entries) {
      const card = [...this.#cards.values()].find((one) => one.element === entry.target);
      if (!card) continue;
      card.isSeen = entry.isIntersecting;
      if (card.isSeen && card.isStale) this.#load(card);
    }
  }

  async #load(card) {
    card.isStale = false;
    const { smooth, range, log } = this.settings;
    const points = Math.min(1600, Math.max(300, Math.round(card.element.clientWidth * 1.5)));
    try {
      const curves = await this.loader.load(card.metric, { smooth, range, points });
      card.chart.show(curves.map((curve) => this.#series(curve)), { log, range });
      card.element.classList.remove("failed");
      replace(card.last, curves.length === 1 ? number(curves[0].last) : "");
    } catch (error) {
      card.element.classList.add("failed");
      replace(card.last, "not loaded");
      card.last.title = error.message;
      card.isStale = true;
    }
  }

  #series(curve) {
    const isSmooth = curve.smooth && curve.num_points > FEW_POINTS;
    return {
      label: label(curve.run),
      colour: colourOf(curve.run, this.runs),
      steps: curve.steps,
      values: curve.values,
      smoothSteps: isSmooth ? curve.smooth_steps : null,
      smooth: isSmooth ? curve.smooth : null,
      last: number(curve.last),
      numPoints: curve.num_points,
    };
  }
}
