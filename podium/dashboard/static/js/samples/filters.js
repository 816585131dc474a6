// What to show of a dump: kind, step, order, filters. Tells its owner when the answer would change.

import { Latest } from "../api.js";
import { debounce, el, replace, svg } from "../dom.js";
import { count, number, tick } from "../format.js";
import { icon } from "../icons.js";

const SORTS = [["order", "As sampled"], ["score:1", "Score, high first"], ["score:0", "Score, low first"], ["length:1", "Longest first"], ["length:0", "Shortest first"], ["source:0", "Source"]];
const GROUP_SORTS = [["order", "As sampled"], ["mean:1", "Mean score, high first"], ["mean:0", "Mean score, low first"], ["spread:1", "Most mixed first"], ["length:1", "Longest first"]];
const FACETS_UP_TO = 100_000;

export class Filters {
  #steps = { rollouts: [], validation: [] };
  #latest = new Latest();
  #facetsOf = "";

  constructor(run, params, onChange) {
    this.run = run;
    this.onChange = onChange;
    this.kind = params.get("kind") === "validation" ? "validation" : "rollouts";
    this.pinned = params.has("step") ? Number(params.get("step")) : null;
    this.isGrouped = params.get("group") === "1";
    this.initial = params;
    this.element = this.#build(params);
  }

  // The dumps there are. The newest is followed until a step is chosen.
  setSteps(steps) {
    const before = this.step;
    const isFirst = !this.isReady;
    this.#steps = steps;
    this.isReady = true;
    if (isFirst && !steps[this.kind].length && steps.validation.length && !this.initial.has("kind")) this.kind = "validation";
    this.#showStep();
    if (isFirst || before !== this.step) this.#tell();
  }

  get step() {
    const list = this.#steps[this.kind];
    return this.pinned !== null && list.includes(this.pinned) ? this.pinned : (list.at(-1) ?? null);
  }

  query() {
    const [sort, desc] = this.sort.value.split(":");
    return {
      kind: this.kind,
      step: this.step,
      group: this.isGrouped,
      sort: sort === "order" ? null : sort,
      desc: desc === "1" ? 1 : null,
      source: this.source.value || null,
      stop: this.stop.value || null,
      text: this.text.value.trim() || null,
      min_score: this.low.value || null,
      max_score: this.high.value || null,
    };
  }

  // Sources, stop reasons and the spread of scores: read once per dump, on request where the dump is very large.
  async loadFacets(total, isAsked = false) {
    const of = `${this.kind} ${this.step}`;
    if (this.#facetsOf === of) return;
    if (total > FACETS_UP_TO && !isAsked) {
      const load = el("button", { type: "button", class: "button", onclick: () => this.loadFacets(total, true) }, `Summarize ${count(total)} samples`);
      return replace(this.summary, load);
    }
    this.#facetsOf = of;
    const facets = await this.#latest.get("facets", { run: this.run, kind: this.kind, step: this.step }).catch(() => undefined);
    if (!facets) return;
    options(this.source, "any source", facets.sources);
    options(this.stop, "any stop reason", facets.stop_reasons);
    replace(this.summary, summary(facets));
  }

  #build(params) {
    const change = () => this.#tell();
    this.kinds = el("div", { class: "segmented", role: "group", "aria-label": "Which samples" },
      ["rollouts", "validation"].map((kind) => el("button", { type: "button", "data-kind": kind, onclick: () => this.#setKind(kind) }, kind)));
    this.input = el("input", { type: "number", min: 0, "aria-label": "Step" });
    this.input.addEventListener("change", () => this.#pick(nearestStep(this.#steps[this.kind], Number(this.input.value))));
    this.grouping = el("input", { type: "checkbox", checked: this.isGrouped });
    this.grouping.addEventListener("change", () => {
      this.isGrouped = this.grouping.checked;
      this.#sorts("order");
      this.#tell();
    });
    this.sort = el("select", { "aria-label": "Order", onchange: change });
    this.#sorts(params.get("sort") ? `${params.get("sort")}:${params.get("desc") === "1" ? 1 : 0}` : "order");
    this.source = choice("Source", params.get("source"), change);
    this.stop = choice("Stop reason", params.get("stop"), change);
    const late = debounce(change, 250);
    this.low = el("input", { type: "number", step: "any", placeholder: "min", "aria-label": "Lowest score", value: params.get("min_score") ?? "", oninput: late });
    this.high = el("input", { type: "number", step: "any", placeholder: "max", "aria-label": "Highest score", value: params.get("max_score") ?? "", oninput: late });
    this.text = el("input", { type: "search", placeholder: "Search text", "aria-label": "Search text", value: params.get("text") ?? "", oninput: late });
    this.summary = el("div", { class: "sample-summary" });
    const button = (label, name, to) => el("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick: () => this.#pick(to()) }, icon(name));
    const beside = (by) => () => {
      const list = this.#steps[this.kind];
      return list[Math.max(0, Math.min(list.length - 1, list.indexOf(this.step) + by))];
    };
    return el("div", { class: "filters" },
      el("div", { class: "toolbar" }, this.kinds,
        el("div", { class: "stepper" }, el("span", { class: "control" }, "Step"), button("Dump before", "left", beside(-1)), this.input, button("Dump after", "right", beside(1)), button("Follow the newest", "latest", () => null)),
        el("label", { class: "control" }, this.grouping, "By prompt"), this.sort, this.text),
      el("div", { class: "toolbar" }, this.source, this.stop, el("span", { class: "control" }, "Score", this.low, "–", this.high), this.summary));
  }

  #sorts(value) {
    replace(this.sort, (this.isGrouped ? GROUP_SORTS : SORTS).map(([key, title]) => el("option", { value: key }, title)));
    this.sort.value = value;
    if (!this.sort.value) this.sort.value = "order";
  }

  #setKind(kind) {
    this.kind = kind;
    this.pinned = null;
    this.#showStep();
    this.#tell();
  }

  #pick(step) {
    this.pinned = step ?? null;
    this.#showStep();
    this.#tell();
  }

  #showStep() {
    if (document.activeElement !== this.input) this.input.value = this.step ?? "";
    for (const button of this.kinds.children) {
      button.setAttribute("aria-pressed", String(button.dataset.kind === this.kind));
      button.disabled = !this.#steps[button.dataset.kind].length;
    }
    if (this.step === null) replace(this.summary);
  }

  #tell() {
    this.onChange({ query: this.query(), isPinned: this.pinned !== null });
  }
}

function nearestStep(list, step) {
  return list.reduce((best, one) => (Math.abs(one - step) < Math.abs(best - step) ? one : best), list[0] ?? null);
}

function choice(label, value, onchange) {
  const select = el("select", { "aria-label": label, onchange });
  options(select, `any ${label.toLowerCase()}`, value ? { [value]: null } : {});
  if (value) select.value = value;
  return select;
}

function options(select, any, counts) {
  const chosen = select.value;
  const names = Object.keys(counts).filter(Boolean);
  replace(select, el("option", { value: "" }, any), names.map((name) => el("option", { value: name }, counts[name] === null ? name : `${name} (${count(counts[name])})`)));
  if (chosen && !names.includes(chosen)) select.append(el("option", { value: chosen }, chosen));
  select.value = chosen;
}

function summary(facets) {
  const facts = [
    ["mean score", number(facets.score_mean)],
    ["prompts", count(facets.num_prompts)],
    ["mean length", number(facets.length_mean)],
    ["unscored", count(facets.unscored)],
  ];
  return [facts.map(([name, value]) => el("span", { class: "fact" }, el("strong", {}, value), ` ${name}`)), facets.histogram && histogram(facets.histogram)];
}

function histogram({ edges, counts }) {
  const [width, height, peak] = [160, 36, Math.max(...counts)];
  const bar = width / counts.length;
  const bars = counts.map((value, index) => {
    const tall = value ? Math.max(1.5, (value / peak) * (height - 2)) : 0;
    return svg("rect", { x: index * bar, y: height - tall, width: Math.max(1, bar - 1), height: tall }, svg("title", {}, `${number(edges[index])}: ${count(value)}`));
  });
  const low = tick(edges[0], (edges.at(-1) - edges[0]) / 10 || 0.1);
  const high = tick(edges.at(-1), (edges.at(-1) - edges[0]) / 10 || 0.1);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `How scores are spread, from ${low} to ${high}`, class: "histogram" }, bars);
  return el("span", { class: "fact histogram-fact" }, el("span", { class: "muted" }, low), picture, el("span", { class: "muted" }, high));
}
