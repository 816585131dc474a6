// A curve in a table cell: its shape and nothing else.

import { svg } from "../dom.js";

const WIDTH = 96;
const HEIGHT = 24;

export function sparkline(values, colour) {
  const numbers = values.filter((value) => value !== null);
  if (numbers.length < 2) return svg("svg", { class: "spark", width: WIDTH, height: HEIGHT, "aria-hidden": "true" });
  const low = Math.min(...numbers);
  const span = Math.max(...numbers) - low || 1;
  const points = numbers.map((value, index) => {
    const x = 2 + (index / (numbers.length - 1)) * (WIDTH - 4);
    const y = HEIGHT - 3 - ((value - low) / span) * (HEIGHT - 6);
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  });
  return svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, "aria-hidden": "true" },
    svg("polyline", { points: points.join(" "), class: `line ${colour}` }),
  );
}
