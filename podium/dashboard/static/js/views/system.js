// Memory, speed and balance: the metrics that tell about the machine.

import { get } from "../api.js";
import { ChartGrid } from "../chart/chart-grid.js";
import { el, replace, throttle } from "../dom.js";

const SECTIONS = [
  ["Memory", /memory|vram|gpu_mem|kv_cache/i],
  ["Speed", /^perf\/(throughput|time_per_step|total_num_tokens|mfu)|^timing_s\/step$/],
  ["GPU and CPU", /^(system|gpu|cpu)\/|utili[sz]ation/i],
  ["Publishing weights", /^publish\//],
  ["Time per token", /^timing_per_token_ms\//],
  ["Balance over ranks", /^global_seqlen\//],
];

export const systemView = {
  title: "System",
  open(root, { runs }) {
    const grid = new ChartGrid(runs, { smooth: 0, log: false, range: null }, { onZoom: (range) => grid.change({ range }) });
    const body = el("div", { class: "sections" }, el("p", { class: "empty", role: "status" }, "Reading…"));
    replace(root, el("h1", { class: "hidden-text" }, "System"), body);
    let shown = "";

    async function load() {
      const answer = await get("metrics", { run: runs }).catch(() => ({}));
      const names = [...new Set(Object.values(answer).flat())].sort();
      if (names.join() === shown && shown) return grid.refresh();
      shown = names.join();
      grid.clear();
      replace(body, sections(names, grid));
    }

    const update = throttle(load, 900);
    load();
    return { changed: (ids) => runs.some((id) => ids.has(id)) && update(), close: () => grid.close() };
  },
};

function sections(names, grid) {
  const left = new Set(names);
  const parts = SECTIONS.map(([title, pattern]) => {
    const found = [...left].filter((name) => pattern.test(name));
    for (const name of found) left.delete(name);
    return found.length ? [el("h2", {}, title), grid.section(found)] : null;
  }).filter(Boolean);
  return parts.length ? parts : el("p", { class: "empty" }, "No numbers about the machine yet. They appear after the first step.");
}
