// What the model wrote: a step's samples or validation answers, as a list or by prompt, with one opened beside it.

import { get, Latest } from "../api.js";
import { debounce, el, replace, throttle } from "../dom.js";
import { count } from "../format.js";
import { remember } from "../router.js";
import { SampleDetail } from "../samples/detail.js";
import { Filters } from "../samples/filters.js";
import { groupRow, sampleRow } from "../samples/rows.js";

const PAGE = 40;

export const samplesView = {
  title: "Samples",
  open(root, { runs, params }) {
    const view = new Samples(root, runs[0], params);
    return { changed: (ids) => ids.has(runs[0]) && view.update(), close: () => view.close() };
  },
};

class Samples {
  #latest = new Latest();
  #rows = [];
  #matched = 0;

  constructor(root, run, params) {
    this.run = run;
    this.line = params.has("line") ? Number(params.get("line")) : null;
    this.list = el("ol", { class: "sample-list", "aria-label": "Samples" });
    this.status = el("p", { class: "list-status", role: "status" });
    this.more = el("button", { type: "button", class: "button", onclick: () => this.#load(true) }, "Show more");
    this.detail = new SampleDetail(run, (step, line) => this.#open(step, line), () => this.#closeDetail());
    this.filters = new Filters(run, params, debounce((state) => this.#changed(state), 30));
    const left = el("div", { class: "sample-main" }, this.status, this.list, this.more);
    this.split = el("div", { class: "split" }, left, this.detail.element);
    replace(root, el("h1", { class: "hidden-text" }, "Samples"), this.filters.element, this.split);
    this.list.addEventListener("keydown", (event) => this.#key(event));
    this.update = throttle(() => this.#steps(), 900);
    this.more.hidden = true;
    this.#steps();
  }

  close() {
    this.#latest.drop();
  }

  // New dumps: the newest is shown unless the reader chose a step.
  async #steps() {
    try {
      this.filters.setSteps(await get("sample-steps", { run: this.run }));
    } catch (error) {
      this.#say(`The samples could not be read: ${error.message}`);
    }
  }

  #changed(state) {
    const { kind, step, group, ...rest } = state.query;
    remember({ kind: kind === "rollouts" ? null : kind, step: state.isPinned ? String(step) : null, group, ...rest });
    if (step === null) {
      replace(this.list);
      this.more.hidden = true;
      return this.#say(kind === "rollouts" ? "No rollouts yet. They appear with the first step." : "No validation yet.");
    }
    this.#load(false);
    if (this.line !== null) this.detail.show(kind, step, this.line);
  }

  async #load(isNext) {
    const { group, ...query } = this.filters.query();
    const offset = isNext ? this.#rows.length : 0;
    this.list.setAttribute("aria-busy", "true");
    try {
      const answer = await this.#latest.get(group ? "groups" : "samples", { ...query, run: this.run, offset, limit: PAGE });
      if (!answer) return;
      this.list.removeAttribute("aria-busy");
      const rows = answer.samples ?? answer.groups;
      this.#rows = isNext ? [...this.#rows, ...rows] : rows;
      this.#matched = answer.matched;
      const items = rows.map((row) => (group ? groupRow(row, query, (line) => this.#open(query.step, line)) : this.#item(row, query)));
      if (isNext) this.list.append(...items);
      else replace(this.list, items);
      this.#mark();
      this.more.hidden = this.#rows.length >= this.#matched;
      const total = answer.total ?? answer.matched;
      const share = total === answer.matched ? "" : `${count(answer.matched)} of `;
      this.#say(`${share}${count(total)} ${group ? "prompt" : "sample"}${total === 1 ? "" : "s"} at step ${count(query.step)}`);
      this.filters.loadFacets(answer.total ?? 0);
    } catch (error) {
      this.list.removeAttribute("aria-busy");
      this.#say(error.message);
    }
  }

  #item(row, query) {
    return sampleRow(row, () => this.#open(query.step, row.line));
  }

  #open(step, line) {
    const { kind } = this.filters.query();
    this.line = line;
    remember({ line: String(line) });
    this.split.classList.add("has-detail");
    this.detail.show(kind, step, line);
    this.#mark();
  }

  #closeDetail() {
    const button = this.list.querySelector("[aria-current] button, button[aria-current]");
    this.line = null;
    remember({ line: null });
    this.split.classList.remove("has-detail");
    this.#mark();
    button?.focus();
  }

  #mark() {
    if (this.line !== null) this.split.classList.add("has-detail");
    for (const button of this.list.querySelectorAll("button[data-line]")) {
      if (Number(button.dataset.line) === this.line) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    }
  }

  // Up and down walk through the samples.
  #key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    if (!by) return;
    const buttons = [...this.list.querySelectorAll("button[data-line]")];
    const next = buttons[buttons.indexOf(document.activeElement) + by];
    if (!next) return;
    event.preventDefault();
    next.focus();
    if (this.line !== null) next.click();
  }

  #say(text) {
    this.status.textContent = text;
  }
}
