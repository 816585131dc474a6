// What happened: saves, restarts, faults; rows that were set aside; and the end of the console log.

import { get } from "../api.js";
import { el, replace, throttle } from "../dom.js";
import { ago, clock, count } from "../format.js";
import { now } from "../store.js";

const LEVELS = ["error", "warning", "info"];

export const eventsView = {
  title: "Events",
  open(root, { runs }) {
    const run = runs[0];
    const shown = new Set(LEVELS);
    const list = el("div", {});
    const log = el("pre", { class: "log", tabindex: 0, "aria-label": "Console log" });
    const state = { answer: null };
    const boxes = LEVELS.map((level) => {
      const box = el("input", { type: "checkbox", checked: true });
      box.addEventListener("change", () => {
        if (box.checked) shown.add(level);
        else shown.delete(level);
        draw();
      });
      return el("label", { class: "control" }, box, `${level}s`.replace("infos", "others"));
    });
    const quarantine = el("div", {});
    replace(
      root,
      el("h1", { class: "hidden-text" }, "Events"),
      el("section", { class: "card" }, el("div", { class: "card-head" }, el("h2", {}, "Events"), el("span", { class: "grow" }), boxes), list),
      quarantine,
      el("section", { class: "card" }, el("div", { class: "card-head" }, el("h2", {}, "Console log")), log),
    );

    function draw() {
      const events = state.answer.events.filter((one) => shown.has(one.severity));
      if (!events.length) return replace(list, el("p", { class: "empty" }, state.answer.total ? "No events of this kind." : "Nothing has happened yet."));
      replace(list, el("ol", { class: "events" }, events.map(eventRow)));
    }

    async function load() {
      try {
        const [answer, tail] = await Promise.all([get("events", { run }), get("log", { run })]);
        state.answer = answer;
        draw();
        replace(quarantine, answer.quarantine.length > 0 && quarantined(answer.quarantine));
        const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 30;
        log.textContent = tail.text || "The run has no console log.";
        if (isAtEnd) log.scrollTop = log.scrollHeight;
      } catch (error) {
        replace(list, el("p", { class: "empty" }, error.message));
      }
    }

    const update = throttle(load, 900);
    load();
    return { changed: (ids) => ids.has(run) && update() };
  },
};

function eventRow({ severity, event }) {
  const { time, kind, step, ...details } = event;
  const when = typeof time === "number" ? el("time", { datetime: new Date(time * 1000).toISOString(), title: clock(time) }, ago(now() - time)) : null;
  return el(
    "li",
    { class: `event event-${severity}` },
    el("span", { class: `badge level-${severity}` }, severity),
    el("div", { class: "event-main" },
      el("div", { class: "event-title" }, el("strong", {}, String(kind ?? "event").replaceAll("_", " ")), step !== undefined && step !== null && el("span", { class: "muted" }, ` at step ${count(Number(step))}`)),
      Object.entries(details).map(([name, value]) => el("div", { class: "event-detail" }, el("span", { class: "muted" }, `${name}: `), typeof value === "string" ? value : JSON.stringify(value))),
    ),
    el("span", { class: "event-time muted" }, when),
  );
}

function quarantined(rows) {
  return el(
    "section",
    { class: "card" },
    el("div", { class: "card-head" }, el("h2", {}, `Rows set aside: ${count(rows.length)}`)),
    el("ol", { class: "events" }, rows.map((row) => el("li", { class: "event" }, el("div", { class: "event-main" }, Object.entries(row).map(([name, value]) => el("div", { class: "event-detail" }, el("span", { class: "muted" }, `${name}: `), typeof value === "string" ? value : JSON.stringify(value))))))),
  );
}
