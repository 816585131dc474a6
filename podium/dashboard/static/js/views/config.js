// Settings of the chosen runs side by side; what differs stands out.

import { get } from "../api.js";
import { el, replace } from "../dom.js";
import { count } from "../format.js";
import { remember } from "../router.js";
import { colourOf, label } from "../store.js";

export const configView = {
  title: "Config",
  open(root, { runs, params }) {
    const filter = el("input", { type: "search", placeholder: "Filter settings", "aria-label": "Filter settings", value: params.get("q") ?? "" });
    const onlyDiffering = el("input", { type: "checkbox", checked: runs.length > 1 && params.get("all") !== "1" });
    const status = el("span", { class: "muted", role: "status" });
    const body = el("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": "Settings" });
    replace(
      root,
      el("h1", { class: "hidden-text" }, "Config"),
      el("div", { class: "toolbar" }, filter, runs.length > 1 && el("label", { class: "control" }, onlyDiffering, "Only differences"), el("span", { class: "grow" }), status),
      body,
    );
    let configs = null;

    function draw() {
      const keys = [...new Set(runs.flatMap((run) => Object.keys(configs[run] ?? {})))];
      const words = filter.value.toLowerCase().split(/\s+/);
      const rows = keys.map((key) => ({ key, values: runs.map((run) => configs[run]?.[key]) })).map((row) => ({ ...row, differs: new Set(row.values.map((value) => JSON.stringify(value))).size > 1 }));
      const differing = rows.filter((row) => row.differs).length;
      const shown = rows.filter((row) => (!onlyDiffering.checked || row.differs) && words.every((word) => row.key.toLowerCase().includes(word)));
      status.textContent = runs.length > 1 ? `${count(differing)} of ${count(keys.length)} settings differ` : `${count(keys.length)} settings`;
      if (!keys.length) return replace(body, el("p", { class: "empty" }, "There is no config.yaml in this run folder."));
      if (!shown.length) return replace(body, el("p", { class: "empty" }, onlyDiffering.checked && !filter.value ? "The settings of these runs are equal." : "No setting matches."));
      replace(body, table(runs, shown, onlyDiffering.checked));
    }

    filter.addEventListener("input", () => {
      remember({ q: filter.value });
      draw();
    });
    onlyDiffering.addEventListener("change", () => {
      remember({ all: !onlyDiffering.checked });
      draw();
    });
    get("config", { run: runs })
      .then((answer) => {
        configs = answer;
        draw();
      })
      .catch((error) => replace(body, el("p", { class: "empty" }, error.message)));
    return {};
  },
};

function table(runs, rows, onlyDiffering) {
  const heads = runs.map((run) => el("th", { scope: "col" }, el("span", { class: `swatch series-${colourOf(run, runs)}` }), ` ${label(run)}`));
  return el(
    "table",
    { class: "config" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Setting"), heads)),
    el("tbody", {}, rows.map((row) => el("tr", { class: row.differs && !onlyDiffering ? "differs" : "" }, el("th", { scope: "row" }, keyText(row.key)), row.values.map((value) => el("td", {}, valueText(value)))))),
  );
}

function keyText(key) {
  const dot = key.lastIndexOf(".") + 1;
  return [el("span", { class: "muted" }, breakable(key.slice(0, dot))), breakable(key.slice(dot))];
}

// A narrow column may break a name after a dot or an underscore, and nowhere else.
function breakable(name) {
  return name.split(/(?<=[._])/).flatMap((part) => [part, el("wbr")]);
}

function valueText(value) {
  if (value === undefined) return el("span", { class: "muted" }, "not set");
  if (value === null) return el("span", { class: "muted" }, "null");
  return value === "" ? el("span", { class: "muted" }, "empty") : String(value);
}
