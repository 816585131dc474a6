// What the page knows: the runs, their colours, and the viewer's preferences. It draws nothing.

const NUM_COLOURS = 10;
const listeners = new Set();
const colours = new Map();

export const runs = new Map();
let clockOffset = 0;

export function setRuns(list, now) {
  clockOffset = now - Date.now() / 1000;
  runs.clear();
  for (const run of list) runs.set(run.id, run);
  tell(new Set(runs.keys()));
}

export function mergeRuns(changed, gone) {
  for (const run of changed) runs.set(run.id, run);
  for (const id of gone) runs.delete(id);
  tell(new Set([...changed.map((run) => run.id), ...gone]));
}

// The server's clock: a browser's may differ.
export function now() {
  return Date.now() / 1000 + clockOffset;
}

export function onChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell(ids) {
  for (const listener of [...listeners]) listener(ids);
}

// A run keeps the colour it got first; the lowest one that no other shown run has.
export function colourOf(id, shown = [id]) {
  if (!colours.has(id)) {
    const taken = new Set(shown.filter((other) => colours.has(other)).map((other) => colours.get(other)));
    let colour = 0;
    while (taken.has(colour) && colour < NUM_COLOURS) colour += 1;
    colours.set(id, colour < NUM_COLOURS ? colour : colours.size % NUM_COLOURS);
  }
  return colours.get(id);
}

// Newest sign of life first; running ones before all others.
export function sorted() {
  const rank = (run) => (run.status === "running" ? 0 : 1);
  return [...runs.values()].sort((a, b) => rank(a) - rank(b) || (b.updated_at ?? 0) - (a.updated_at ?? 0));
}

// The name alone where it tells runs apart, else the whole id.
export function label(id) {
  const name = id.split("/").at(-1);
  for (const other of runs.keys()) if (other !== id && other.split("/").at(-1) === name) return id;
  return name;
}

export function preference(name, fallback) {
  try {
    const text = localStorage.getItem(`podium.${name}`);
    return text === null ? fallback : JSON.parse(text);
  } catch {
    return fallback;
  }
}

export function setPreference(name, value) {
  try {
    localStorage.setItem(`podium.${name}`, JSON.stringify(value));
  } catch {
    // Private windows may refuse; the choice then lasts as long as the page.
  }
}
