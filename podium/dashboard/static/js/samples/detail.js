// One sample in full: prompt, response, reward parts, the other samples of its prompt, and that prompt over the steps.

import { get, Latest } from "../api.js";
import { el, replace } from "../dom.js";
import { count, exact, number } from "../format.js";
import { icon } from "../icons.js";
import { scoreBadge } from "./rows.js";
import { segments } from "./segments.js";
import { tokenColumns, tokenView } from "./tokens.js";

const SHOWN_ELSEWHERE = new Set(["input", "output", "gts", "score", "tokens", "log_probs", "old_log_probs", "rollout_log_probs", "advantages", "response_mask", "ratio", "ratios"]);
const FACTS = ["step", "uid", "data_source", "stop_reason", "turns", "policy_version"];

export class SampleDetail {
  #latest = new Latest();

  constructor(run, onOpen, onClose) {
    this.run = run;
    this.onOpen = onOpen;
    this.body = el("div", { class: "detail-body" });
    this.title = el("h2", { tabindex: -1 }, "Sample");
    const close = el("button", { type: "button", class: "icon-button", "aria-label": "Close the sample", onclick: onClose }, icon("close"));
    this.element = el("aside", { class: "detail", "aria-label": "Sample" }, el("div", { class: "card-head" }, this.title, el("span", { class: "grow" }), close), this.body);
    this.element.addEventListener("keydown", (event) => event.key === "Escape" && onClose());
  }

  async show(kind, step, line) {
    try {
      const answer = await this.#latest.get("sample", { run: this.run, kind, step, line });
      if (!answer) return;
      const { record, siblings } = answer;
      replace(this.title, scoreBadge(typeof record.score === "number" ? record.score : null), ` sample ${count(line + 1)} of step ${count(step)}`);
      replace(
        this.body,
        textSection("Prompt", asText(record.input)),
        this.#response(record),
        record.gts !== null && record.gts !== undefined && textSection("Ground truth", asText(record.gts)),
        table("Reward parts", Object.entries(record).filter(([name]) => !SHOWN_ELSEWHERE.has(name) && !FACTS.includes(name))),
        siblings.length > 1 && this.#group(kind, step, line, siblings),
        this.#history(kind, record.uid),
        table("About", FACTS.filter((name) => name in record).map((name) => [name, record[name]])),
      );
      this.body.scrollTop = 0;
    } catch (error) {
      replace(this.body, el("p", { class: "empty" }, error.message));
    }
  }

  #response(record) {
    const columns = tokenColumns(record);
    const text = asText(record.output);
    if (!columns) return textSection("Response", text);
    const hasParts = segments(text).length > 1;
    return [hasParts && textSection("Response", text), el("section", {}, el("h3", {}, hasParts ? "Tokens" : "Response"), tokenView(columns))];
  }

  #group(kind, step, line, siblings) {
    const scores = siblings.map((one) => one.score).filter((score) => score !== null);
    const mean = scores.length ? scores.reduce((a, b) => a + b, 0) / scores.length : null;
    const rows = siblings.map((one) =>
      el(
        "li",
        {},
        el(
          "button",
          { type: "button", class: "sibling", "aria-current": one.line === line ? "true" : null, onclick: () => this.onOpen(step, one.line) },
          scoreBadge(one.score),
          el("span", { class: "sibling-text" }, one.output.trim() || "(empty)"),
        ),
      ),
    );
    return el("section", {}, el("h3", {}, `The ${siblings.length} samples of this prompt`, el("span", { class: "muted" }, ` mean ${number(mean)}`)), el("ol", { class: "siblings" }, rows));
  }

  // Looked for on request: it reads many dumps.
  #history(kind, uid) {
    if (typeof uid !== "string" || !uid) return null;
    const list = el("ol", { class: "siblings", tabindex: 0, "aria-label": "This prompt over the steps" });
    const details = el("details", { class: "history" }, el("summary", {}, "This prompt over the steps"), list);
    details.addEventListener("toggle", async () => {
      if (!details.open || list.children.length) return;
      replace(list, el("li", { class: "muted" }, "Searching…"));
      try {
        const { steps } = await get("history", { run: this.run, kind, uid });
        replace(list, steps.map((entry) => historyRow(entry)));
      } catch (error) {
        replace(list, el("li", {}, error.message));
      }
    });
    return details;
  }
}

function historyRow({ step, mean, num_samples: size, first }) {
  const of = size > 1 ? ` mean of ${size}` : "";
  return el("li", { class: "history-row" }, el("span", { class: "muted" }, `step ${count(step)}`), scoreBadge(mean), el("span", { class: "muted" }, of), el("span", { class: "sibling-text" }, first.output.trim() || "(empty)"));
}

function asText(value) {
  return typeof value === "string" ? value : JSON.stringify(value ?? "", null, 1);
}

// In its parts, or as it was written, markers and all.
function textSection(title, text) {
  const parts = segments(text);
  const isPlain = parts.length <= 1 && !parts[0]?.label;
  const body = el("div", {});
  const toggle = el("button", { type: "button", class: "link", "aria-pressed": "false" }, "as written");
  let isRaw = isPlain;
  const draw = () => {
    replace(body, isRaw ? block({ label: "", text: text || "(empty)", kind: "text" }) : parts.map(block));
    toggle.setAttribute("aria-pressed", String(isRaw));
  };
  toggle.addEventListener("click", () => {
    isRaw = !isRaw;
    draw();
  });
  draw();
  return el("section", {}, el("h3", {}, title, !isPlain && toggle), body);
}

function block({ label, text, kind }) {
  // Long texts scroll; a tab stop lets keys do it.
  return el("div", { class: `text-block block-${kind}`, tabindex: 0 }, label && el("span", { class: "block-label" }, kind === "outside" ? `${label} (not written by the model)` : label), text);
}

function table(title, entries) {
  if (!entries.length) return null;
  const value = (item) => (typeof item === "number" ? exact(item) : asText(item));
  return el("section", {}, el("h3", {}, title), el("table", { class: "facts" }, el("tbody", {}, entries.map(([name, item]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value(item)))))));
}
