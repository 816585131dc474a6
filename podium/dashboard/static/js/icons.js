// The few icons of the page, as strokes on a 16 by 16 field.

import { svg } from "./dom.js";

const PATHS = {
  star: "M8 2.2l1.8 3.7 4 .6-2.9 2.8.7 4L8 11.4l-3.6 1.9.7-4L2.2 6.5l4-.6z",
  expand: "M9.5 2.5h4v4M13.2 2.8L9.4 6.6M6.5 13.5h-4v-4M2.8 13.2l3.8-3.8",
  close: "M4 4l8 8M12 4l-8 8",
  left: "M10 3L5 8l5 5",
  right: "M6 3l5 5-5 5",
  latest: "M4 3l5 5-5 5M12 3v10",
  sun: "M8 5.2a2.8 2.8 0 100 5.6 2.8 2.8 0 000-5.6zM8 1v1.6M8 13.4V15M1 8h1.6M13.4 8H15M3 3l1.2 1.2M11.8 11.8L13 13M13 3l-1.2 1.2M4.2 11.8L3 13",
  moon: "M13.2 9.6A5.6 5.6 0 016.4 2.8 5.6 5.6 0 108 13.6a5.6 5.6 0 005.2-4z",
  auto: "M8 2a6 6 0 100 12A6 6 0 008 2zM8 2v12M8 5.5l4.6-.6M8 8h6M8 10.5l4.6.6",
};

export function icon(name) {
  return svg(
    "svg",
    { viewBox: "0 0 16 16", width: 16, height: 16, class: `icon icon-${name}`, "aria-hidden": "true" },
    svg("path", { d: PATHS[name] }),
  );
}
