// Tokens in colour, where a dump has them: by log-prob, advantage, ratio or mask.

import { el, replace } from "../dom.js";
import { exact } from "../format.js";

const MODES = {
  log_probs: { title: "Log-prob", level: (value) => -Math.min(5, Math.round(-value)) },
  advantages: { title: "Advantage", level: (value, scale) => Math.round((5 * value) / scale) },
  ratios: { title: "Ratio", level: (value) => Math.max(-5, Math.min(5, Math.round(10 * (value - 1)))) },
  response_mask: { title: "Mask", level: (value) => (value ? 0 : "masked") },
};
const NAMES = { old_log_probs: "log_probs", rollout_log_probs: "log_probs", ratio: "ratios" };
const MAX_TOKENS = 20_000;

// The per-token columns of a record, or null.
export function tokenColumns(record) {
  if (!Array.isArray(record.tokens) || !record.tokens.length) return null;
  const columns = {};
  for (const [name, values] of Object.entries(record)) {
    const mode = NAMES[name] ?? name;
    if (mode in MODES && Array.isArray(values) && values.length === record.tokens.length) columns[mode] ??= values;
  }
  return { tokens: record.tokens.slice(0, MAX_TOKENS), columns };
}

export function tokenView({ tokens, columns }) {
  const names = Object.keys(columns);
  const body = el("div", { class: "text-block tokens", tabindex: 0 });
  const readout = el("span", { class: "muted", role: "status" }, "Point at a token for its numbers.");
  const select = el("select", { "aria-label": "Colour tokens by" }, names.map((name) => el("option", { value: name }, MODES[name].title)));

  function draw() {
    const mode = select.value;
    const values = columns[mode] ?? [];
    const scale = Math.max(1e-9, ...values.map((value) => Math.abs(value ?? 0)));
    replace(body, tokens.map((token, index) => {
      const value = values[index];
      const level = value === null || value === undefined ? 0 : MODES[mode].level(value, scale);
      return el("span", { class: `token heat-${String(level).replace("-", "n")}`, "data-index": index }, String(token));
    }));
  }

  body.addEventListener("pointerover", (event) => {
    const index = event.target.dataset?.index;
    if (index === undefined) return;
    const parts = names.map((name) => `${MODES[name].title.toLowerCase()} ${exact(columns[name][index])}`);
    readout.textContent = `token ${Number(index) + 1}: ${parts.join(", ")}`;
  });
  select.addEventListener("change", draw);
  draw();
  return el("div", {}, el("div", { class: "block-tools" }, names.length > 0 && el("label", { class: "control" }, "Colour by", select), readout), body);
}
