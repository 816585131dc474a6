// A sample in a list, and a prompt with all its samples.

import { el } from "../dom.js";
import { count, number } from "../format.js";
import { question } from "./segments.js";

export function scoreBadge(score) {
  if (score === null || score === undefined) return el("span", { class: "score score-none", title: "unscored" }, "none");
  const tone = score > 0 ? "good" : score < 0 ? "bad" : "zero";
  return el("span", { class: `score score-${tone}` }, Number.isInteger(score) ? count(score) : number(score));
}

export function sampleRow(sample, onOpen) {
  const facts = [
    sample.stop_reason,
    sample.num_tokens === null ? `${count(sample.length)} chars` : `${count(sample.num_tokens)} tokens`,
    sample.data_source,
    sample.turns > 1 ? `${sample.turns} turns` : "",
    sample.policy_version === undefined || sample.policy_version === null ? "" : `policy ${sample.policy_version}`,
  ].filter(Boolean);
  return el(
    "li",
    {},
    el(
      "button",
      { type: "button", class: "sample-row", "data-line": sample.line, onclick: onOpen },
      scoreBadge(sample.score),
      el("span", { class: "sample-texts" },
        el("span", { class: "sample-prompt" }, question(sample.input)),
        el("span", { class: "sample-response" }, sample.output.trim() || "(empty)"),
        el("span", { class: "sample-facts" }, facts.join(" · ")),
      ),
    ),
  );
}

export function groupRow(group, query, onOpen) {
  const dots = group.samples.map((sample, index) =>
    el(
      "button",
      { type: "button", class: "group-dot", "data-line": sample.line, "aria-label": `Sample ${index + 1}, score ${sample.score ?? "none"}`, onclick: () => onOpen(sample.line) },
      scoreBadge(sample.score),
    ),
  );
  const spread = group.spread === null ? "" : ` ± ${number(group.spread)}`;
  const flat = group.spread === 0 && group.size > 1 ? " · all equal: no learning signal" : "";
  return el(
    "li",
    { class: "group-row" },
    el("div", { class: "sample-prompt" }, question(group.prompt)),
    el("div", { class: "sample-facts" }, `mean ${number(group.mean)}${spread} · ${group.size} samples · ${group.source}${flat}`),
    el("div", { class: "group-dots" }, dots),
  );
}
