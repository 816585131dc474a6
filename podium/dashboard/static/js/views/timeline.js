// Where the time goes: seconds per phase over the run, and one step phase by phase, by rank where the run tells.

import { get, Latest } from "../api.js";
import { StackedBars } from "../chart/stacked-bars.js";
import { el, replace, throttle } from "../dom.js";
import { count, percent, seconds } from "../format.js";
import { icon } from "../icons.js";
import { inOrder, isOutside, phaseClass } from "../phases.js";
import { remember } from "../router.js";

const BY_RANK = /^timing_s\/([^/]+)\/rank_?(\d+)$/;

export const timelineView = {
  title: "Timeline",
  open(root, { runs, params }) {
    const view = new Timeline(root, runs[0], params);
    return { changed: (ids) => ids.has(runs[0]) && view.update(), close: () => view.close() };
  },
};

class Timeline {
  #latest = new Latest();
  #steps = [0, 0];

  constructor(root, run, params) {
    this.run = run;
    this.step = params.has("step") ? Number(params.get("step")) : null;
    this.bars = new StackedBars("Seconds per phase over the steps. Arrow keys choose a bar.", (step) => this.#pick(step));
    this.legend = el("ul", { class: "legend", "aria-label": "Phases" });
    this.heading = el("h2", {}, "One step");
    this.lanes = el("div", { class: "lanes" });
    this.input = el("input", { type: "number", min: 0, "aria-label": "Step" });
    this.input.addEventListener("change", () => this.#pick(Number(this.input.value)));
    const move = (by) => () => this.#pick((this.step ?? this.#steps[1]) + by);
    replace(
      root,
      el("h1", { class: "hidden-text" }, "Timeline"),
      el("section", { class: "card" }, el("div", { class: "card-head" }, el("h2", { class: "card-title" }, "Seconds per step"), this.legend), this.bars.element),
      el(
        "section",
        { class: "card" },
        el(
          "div",
          { class: "card-head" },
          this.heading,
          el("span", { class: "grow" }),
          el("div", { class: "stepper" },
            el("button", { type: "button", class: "icon-button", "aria-label": "Step before", onclick: move(-1) }, icon("left")),
            this.input,
            el("button", { type: "button", class: "icon-button", "aria-label": "Step after", onclick: move(1) }, icon("right")),
            el("button", { type: "button", class: "icon-button", "aria-label": "Newest step", title: "Follow the newest step", onclick: () => this.#pick(null) }, icon("latest")),
          ),
        ),
        this.lanes,
      ),
    );
    this.update = throttle(() => this.#load(), 900);
    this.#load();
  }

  close() {
    this.bars.close();
    this.#latest.drop();
  }

  #pick(step) {
    this.step = step === null ? null : Math.max(this.#steps[0], Math.min(this.#steps[1], step));
    remember({ step: this.step === null ? null : String(this.step) });
    this.#load();
  }

  async #load() {
    try {
      const buckets = Math.max(40, Math.min(240, Math.floor(this.bars.element.clientWidth / 6)));
      const data = await this.#latest.get("timeline", { run: this.run, buckets });
      if (!data) return;
      this.#steps = [data.first[0] ?? 0, data.last.at(-1) ?? 0];
      const names = inOrder(Object.keys(data.phases));
      replace(this.legend, names.map((name) => el("li", {}, el("span", { class: `swatch ${phaseClass(name)}` }), name)));
      const step = this.step ?? this.#steps[1];
      this.bars.show(data, names, step);
      this.#showStep(step, await get("step", { run: this.run, step }));
    } catch (error) {
      replace(this.lanes, el("p", { class: "empty" }, error.message));
    }
  }

  #showStep(step, record) {
    this.heading.textContent = `Step ${count(step)}`;
    if (document.activeElement !== this.input) this.input.value = step;
    const times = {};
    const ranks = {};
    for (const [name, value] of Object.entries(record)) {
      const byRank = BY_RANK.exec(name);
      if (byRank) (ranks[byRank[1]] ??= [])[Number(byRank[2])] = value;
      else if (name.startsWith("timing_s/") && value !== null) times[name.slice(9)] = value;
    }
    if (!("step" in times)) return replace(this.lanes, el("p", { class: "empty" }, "This step has no times."));
    replace(this.lanes, lanes(times, ranks));
  }
}

// Phases follow each other in the loop, so each bar begins where the one before ended.
function lanes(times, ranks) {
  const inside = inOrder(Object.keys(times)).filter((name) => !isOutside(name));
  const known = inside.reduce((sum, name) => sum + times[name], 0);
  if (times.step - known > 0.002 * times.step) times = { ...times, other: times.step - known };
  const all = inOrder(Object.keys(times));
  const names = [...all.filter((name) => !isOutside(name)), ...all.filter(isOutside)];
  const whole = Math.max(times.step, known) + names.filter(isOutside).reduce((sum, name) => sum + times[name], 0);
  let at = 0;
  const rows = names.map((name) => {
    const row = lane(name, times[name], at, whole, isOutside(name) ? null : times[name] / times.step);
    const below = (ranks[name] ?? []).map((value, rank) => lane(`rank ${rank}`, value, at, whole, null, name));
    at += times[name];
    return [row, below];
  });
  const total = el("tr", { class: "lane-total" }, el("th", { scope: "row" }, "step"), el("td"), el("td", { class: "numeric" }, seconds(times.step)), el("td"));
  return el(
    "table",
    { class: "lane-table" },
    el("thead", {}, el("tr", {}, ["Phase", "When", "Seconds", "Share"].map((title, index) => el("th", { scope: "col", class: index > 1 ? "numeric" : "" }, title)))),
    el("tbody", {}, rows, total),
  );
}

function lane(name, value, start, whole, share, phase = name) {
  const bar = el("span", { class: `lane-bar ${phaseClass(phase)}` });
  bar.style.marginInlineStart = `${(100 * start) / whole}%`;
  bar.style.inlineSize = `${Math.max(0.3, (100 * value) / whole)}%`;
  return el(
    "tr",
    { class: phase === name ? "" : "lane-rank" },
    el("th", { scope: "row" }, name),
    el("td", { class: "lane-track" }, bar),
    el("td", { class: "numeric" }, seconds(value)),
    el("td", { class: "numeric" }, share === null ? "" : percent(share)),
  );
}
