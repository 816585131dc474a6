// The frame of the page: tabs, the bar of chosen runs, and the view that the address names.

import { announce, el, replace } from "./dom.js";
import { watch } from "./live.js";
import { current, linkWithRuns } from "./router.js";
import { drawRunBar } from "./runbar.js";
import { onChange, runs, sorted } from "./store.js";
import { startTheme } from "./theme.js";
import { configView } from "./views/config.js";
import { curvesView } from "./views/curves.js";
import { eventsView } from "./views/events.js";
import { runsView } from "./views/runs.js";
import { samplesView } from "./views/samples.js";
import { systemView } from "./views/system.js";
import { timelineView } from "./views/timeline.js";

const VIEWS = {
  runs: runsView,
  curves: curvesView,
  samples: samplesView,
  timeline: timelineView,
  events: eventsView,
  config: configView,
  system: systemView,
};

const main = document.getElementById("main");
const tabs = document.getElementById("tabs");
const runBar = document.getElementById("runbar");
let shown = null;
let chosen = [];

// The runs in the address that exist; a run view without any takes the newest.
function chooseRuns(params) {
  const asked = params.getAll("run");
  const known = asked.filter((id) => runs.has(id));
  if (known.length) return known;
  return asked.length ? [] : sorted().slice(0, 1).map((run) => run.id);
}

function show() {
  const { view, params } = current();
  const name = view in VIEWS ? view : "runs";
  shown?.close?.();
  shown = null;
  if (!isLoaded) return;
  const asked = params.getAll("run");
  chosen = name === "runs" ? asked.filter((id) => runs.has(id)) : chooseRuns(params);
  drawTabs(name);
  drawRunBar(runBar, name, chosen);
  document.title = `${VIEWS[name].title} · Podium`;
  replace(main);
  main.className = `view view-${name}`;
  if (name !== "runs" && !chosen.length) {
    const missing = asked.length ? `There is no run ${asked.join(", ")} in this folder.` : "There is no run yet.";
    replace(main, el("p", { class: "empty" }, missing, " ", el("a", { href: "#/runs" }, "All runs")));
    return;
  }
  shown = VIEWS[name].open(main, { runs: chosen, params });
}

function drawTabs(name) {
  replace(
    tabs,
    Object.entries(VIEWS).map(([key, view]) =>
      el("a", { href: linkWithRuns(key, chosen), "aria-current": key === name ? "page" : null }, view.title),
    ),
  );
  tabs.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

let isLoaded = false;
onChange((ids) => {
  if (!isLoaded) {
    isLoaded = true;
    show();
    return;
  }
  const { view, params } = current();
  const isWaiting = shown === null || (view !== "runs" && !chosen.some((id) => runs.has(id)));
  if (isWaiting) return show();
  drawRunBar(runBar, view in VIEWS ? view : "runs", chosen.filter((id) => runs.has(id)));
  shown?.changed?.(ids, params);
});

window.addEventListener("hashchange", () => {
  if (location.hash === "#main") return;
  show();
  announce(document.title);
});
startTheme(document.getElementById("theme"));
watch(document.getElementById("live"), (folder) => {
  document.getElementById("folder").textContent = folder;
});
