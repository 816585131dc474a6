// Light, dark, or as the system says. The choice is kept.

import { replace } from "./dom.js";
import { icon } from "./icons.js";
import { preference, setPreference } from "./store.js";

const ORDER = ["auto", "light", "dark"];
const ICONS = { auto: "auto", light: "sun", dark: "moon" };

export function startTheme(button) {
  let theme = preference("theme", "auto");
  const show = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    replace(button, icon(ICONS[theme] ?? "auto"));
    const next = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    button.setAttribute("aria-label", `Theme: ${theme}. Change to ${next}`);
    button.title = `Theme: ${theme}`;
  };
  button.addEventListener("click", () => {
    theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    setPreference("theme", theme);
    show();
  });
  show();
}
