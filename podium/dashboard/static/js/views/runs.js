// All runs: how each stands, its main numbers, and boxes to choose some for comparison.

import { get } from "../api.js";
import { sparkline } from "../chart/sparkline.js";
import { el, replace, throttle } from "../dom.js";
import { ago, count, duration, number, percent } from "../format.js";
import { linkWithRuns, remember } from "../router.js";
import { now, runs, sorted } from "../store.js";

const SPARK = "critic/score/mean";
const COLUMNS = [
  { key: "name", title: "Run", value: (run) => run.id },
  { key: "status", title: "Status", value: (run) => run.status },
  { key: "progress", title: "Progress", value: (run) => run.step },
  { key: "reward", title: "Reward", value: (run) => run.headline.reward, numeric: true },
  { key: "validation", title: "Validation", value: (run) => run.validation.last, numeric: true },
  { key: "kl", title: "KL", value: (run) => run.headline.KL, numeric: true, minor: true },
  { key: "entropy", title: "Entropy", value: (run) => run.headline.entropy, numeric: true, minor: true },
  { key: "length", title: "Length", value: (run) => run.headline.length, numeric: true, minor: true },
  { key: "speed", title: "Tokens/s", value: (run) => run.headline["tokens/s"], numeric: true, minor: true },
  { key: "updated", title: "Updated", value: (run) => run.updated_at, numeric: true },
];

export const runsView = {
  title: "Runs",
  open(root, { runs: chosen, params }) {
    const view = new Overview(root, new Set(chosen), params);
    return { changed: () => view.refresh(), close: () => view.close() };
  },
};

class Overview {
  #sparks = new Map();
  #sort;

  constructor(root, chosen, params) {
    this.chosen = chosen;
    this.filter = params.get("q") || "";
    this.#sort = { key: params.get("sort"), descending: params.get("desc") === "1" };
    this.tiles = el("ul", { class: "tiles", "aria-label": "Runs by status" });
    this.compare = el("div", { class: "compare" });
    this.table = el("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": "Runs" });
    this.search = el("input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter runs", value: this.filter });
    this.search.addEventListener("input", () => {
      this.filter = this.search.value;
      remember({ q: this.filter });
      this.draw();
    });
    replace(
      root,
      el("h1", { class: "hidden-text" }, "Runs"),
      el("div", { class: "toolbar" }, this.tiles, el("span", { class: "grow" }), this.compare, this.search),
      this.table,
    );
    this.refresh = throttle(() => this.draw(), 300);
    this.loadSparks = throttle(() => this.#loadSparks(), 2000);
    this.draw();
    this.ticking = setInterval(() => this.draw(), 5000);
  }

  close() {
    clearInterval(this.ticking);
  }

  draw() {
    this.#drawTiles();
    this.#drawCompare();
    const shown = this.#order(sorted().filter((run) => matches(run, this.filter)));
    if (!runs.size) return replace(this.table, welcome());
    if (!shown.length) return replace(this.table, el("p", { class: "empty" }, `No run matches “${this.filter}”.`));
    const focus = document.activeElement?.dataset?.focus;
    replace(this.table, el("table", { class: "runs" }, this.#head(), el("tbody", {}, shown.map((run) => this.#row(run)))));
    if (focus) this.table.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
    this.loadSparks();
  }

  #order(list) {
    const column = COLUMNS.find((one) => one.key === this.#sort.key);
    if (!column) return list;
    const sign = this.#sort.descending ? -1 : 1;
    return list.sort((a, b) => {
      const [x, y] = [column.value(a), column.value(b)];
      if (x === undefined || x === null) return 1;
      if (y === undefined || y === null) return -1;
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
    });
  }

  #drawTiles() {
    const counts = {};
    for (const run of runs.values()) counts[run.status] = (counts[run.status] ?? 0) + 1;
    const names = ["running", "finished", "stopped", "stalled", "crashed", "empty"].filter((name) => counts[name]);
    replace(
      this.tiles,
      el("li", { class: "tile" }, el("strong", {}, count(runs.size)), runs.size === 1 ? " run" : " runs"),
      names.map((name) => el("li", { class: "tile" }, el("span", { class: `dot status-${name}` }), el("strong", {}, count(counts[name])), ` ${name}`)),
    );
  }

  #drawCompare() {
    const chosen = [...this.chosen].filter((id) => runs.has(id));
    if (!chosen.length) return replace(this.compare);
    const many = chosen.length > 1 ? `Compare ${chosen.length} runs` : "Open 1 run";
    replace(
      this.compare,
      el("a", { class: "button primary", href: linkWithRuns("curves", chosen) }, many),
      chosen.length > 1 && el("a", { class: "button", href: linkWithRuns("config", chosen) }, "Compare settings"),
    );
  }

  #head() {
    const cells = COLUMNS.map((column) => {
      const isSorted = this.#sort.key === column.key;
      const direction = this.#sort.descending ? "descending" : "ascending";
      const sort = () => {
        this.#sort = { key: column.key, descending: isSorted ? !this.#sort.descending : Boolean(column.numeric) };
        remember({ sort: column.key, desc: this.#sort.descending });
        this.draw();
      };
      return el(
        "th",
        { scope: "col", class: cellClass(column), "aria-sort": isSorted ? direction : null },
        el("button", { type: "button", class: "sort", "data-focus": `sort ${column.key}`, onclick: sort }, column.title),
      );
    });
    return el("thead", {}, el("tr", {}, el("th", { scope: "col", class: "cell-box" }, el("span", { class: "hidden-text" }, "Choose")), cells));
  }

  #row(run) {
    const box = el("input", { type: "checkbox", checked: this.chosen.has(run.id), "aria-label": `Choose ${run.id}`, "data-focus": `box ${run.id}` });
    box.addEventListener("change", () => {
      if (box.checked) this.chosen.add(run.id);
      else this.chosen.delete(run.id);
      this.#drawCompare();
    });
    const cells = { name: this.#name(run), status: status(run), progress: progress(run), reward: this.#reward(run), validation: validation(run) };
    const { KL, entropy, length, "tokens/s": speed } = run.headline;
    const plain = { kl: number(KL), entropy: number(entropy), length: number(length), speed: number(speed), updated: updated(run) };
    return el(
      "tr",
      { "data-run": run.id },
      el("td", { class: "cell-box" }, box),
      COLUMNS.map((column) => el("td", { class: cellClass(column) }, cells[column.key] ?? plain[column.key])),
    );
  }

  #name(run) {
    const { model, estimator, data } = run.about;
    const about = [estimator, data?.replaceAll("task:", ""), model && `on ${model.split("/").at(-1)}`].filter(Boolean).join(" · ");
    return [
      el("div", { class: "run-title", title: run.id },
        el("a", { class: "run-name", href: linkWithRuns("curves", [run.id]), "data-focus": `name ${run.id}` }, run.name),
        run.project && el("span", { class: "run-project" }, run.project),
      ),
      run.status === "crashed" && run.reason
        ? el("div", { class: "run-about run-failure", title: run.reason }, run.reason)
        : el("div", { class: "run-about", title: about }, about),
    ];
  }

  #reward(run) {
    const spark = this.#sparks.get(run.id);
    return el("span", { class: "with-spark" }, spark ? sparkline(spark.values, "series-0") : null, number(run.headline.reward));
  }

  // The curve of each run's reward, asked for again only when its metrics changed.
  async #loadSparks() {
    const due = [...runs.values()].filter((run) => this.#sparks.get(run.id)?.version !== run.versions.metrics).slice(0, 50);
    if (!due.length) return;
    const answer = await get("curves", { run: due.map((run) => run.id), metric: SPARK, points: 60, smooth: 0.6 }).catch(() => ({ curves: [] }));
    for (const run of due) {
      const curve = answer.curves.find((one) => one.run === run.id);
      this.#sparks.set(run.id, { version: run.versions.metrics, values: curve?.smooth ?? [] });
    }
    this.draw();
  }
}

function cellClass(column) {
  return [`cell-${column.key}`, column.numeric && "numeric", column.minor && "minor"].filter(Boolean).join(" ");
}

function matches(run, filter) {
  const text = [run.id, run.status, ...Object.values(run.about)].join(" ").toLowerCase();
  return filter.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function status(run) {
  const { errors, warnings, last } = run.faults;
  const faults = [errors && `${errors} error${errors > 1 ? "s" : ""}`, warnings && `${warnings} warning${warnings > 1 ? "s" : ""}`].filter(Boolean);
  return [
    el("span", { class: `badge status-${run.status}`, title: run.reason }, run.status),
    faults.length > 0 && el("a", { class: "faults", href: linkWithRuns("events", [run.id]), title: last ?? "" }, faults.join(", ")),
  ];
}

function progress(run) {
  const total = run.total_steps;
  const left = total && run.step_s && run.status === "running" ? ` · ${duration((total - run.step) * run.step_s)} left` : "";
  const text = total ? `${count(run.step)} / ${count(total)}` : `step ${count(run.step)}`;
  const share = total ? Math.min(1, run.step / total) : 0;
  return [
    total && el("progress", { max: 1, value: share, "aria-label": `${run.id}: ${percent(share)} of its steps` }),
    el("div", { class: "progress-text" }, text, el("span", { class: "muted" }, left)),
  ];
}

function validation(run) {
  const { first, last } = run.validation;
  if (last === null || last === undefined) return "–";
  if (first === null || first === last) return number(last);
  return [el("span", { class: "muted" }, `${number(first)} → `), el("strong", {}, number(last))];
}

function updated(run) {
  return run.updated_at === null ? "–" : ago(now() - run.updated_at);
}

function welcome() {
  return el(
    "div",
    { class: "empty" },
    el("h2", {}, "No runs here yet"),
    el("p", {}, "A run appears by itself as soon as it starts. In another terminal:"),
    el("pre", {}, "podium train quickstart"),
  );
}
