// The bar of chosen runs: a chip each with its colour and status, and a way to add another.

import { el, replace } from "./dom.js";
import { icon } from "./icons.js";
import { go, linkWithRuns } from "./router.js";
import { colourOf, label, runs, sorted } from "./store.js";

// Views of one run show the first chip; the others wait for a comparison.
const OF_ONE_RUN = new Set(["samples", "timeline", "events"]);

export function drawRunBar(bar, view, chosen) {
  bar.hidden = view === "runs" || !chosen.length;
  if (bar.hidden || bar.contains(document.activeElement)) return;
  const rest = sorted().filter((run) => !chosen.includes(run.id));
  replace(
    bar,
    el("ul", { class: "chips", "aria-label": "Chosen runs" }, chosen.map((id, index) => chip(view, chosen, id, index))),
    rest.length > 0 && adder(view, chosen, rest),
    chosen.map((id) => notice(runs.get(id), chosen.length)),
  );
}

function chip(view, chosen, id, index) {
  const run = runs.get(id);
  const others = chosen.filter((other) => other !== id);
  const isIdle = OF_ONE_RUN.has(view) && index > 0;
  const name = isIdle
    ? el("a", { href: linkWithRuns(view, [id, ...others]), title: "Show this run" }, label(id))
    : el("span", { title: id }, label(id));
  return el(
    "li",
    { class: `chip ${isIdle ? "chip-idle" : ""}` },
    el("span", { class: `swatch series-${colourOf(id, chosen)}` }),
    name,
    run && el("span", { class: `dot status-${run.status}`, title: run.reason || run.status }),
    run && el("span", { class: "chip-status" }, run.status),
    others.length > 0 &&
      el("a", { class: "chip-close", href: linkWithRuns(view, others), "aria-label": `Remove ${id}` }, icon("close")),
  );
}

// Why a run ended badly. That one of several is silent is in its chip already.
function notice(run, numChosen) {
  const isShown = run?.reason && (run.status === "crashed" || (["stalled", "stopped"].includes(run.status) && numChosen === 1));
  if (!isShown) return null;
  const who = numChosen > 1 ? `${label(run.id)} ${run.status}: ` : `${run.status}: `;
  return el("p", { class: `notice notice-${run.status}` }, el("strong", {}, who), run.reason);
}

function adder(view, chosen, rest) {
  const select = el(
    "select",
    {
      "aria-label": "Add a run",
      onchange: () => {
        if (!select.value) return;
        const next = [...chosen, select.value];
        select.blur();
        go(linkWithRuns(view, next));
      },
    },
    el("option", { value: "" }, "+ add a run"),
    rest.map((run) => el("option", { value: run.id }, `${run.id} (${run.status})`)),
  );
  return select;
}
