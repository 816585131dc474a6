// The phases of a step in the order in which the loop runs them, and their colours.

const ORDER = [
  "gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "update_weights",
  "testing", "save_checkpoint", "other",
];

const OUTSIDE = new Set(["testing", "save_checkpoint"]);

export function phaseClass(name) {
  const index = ORDER.indexOf(name);
  return index >= 0 ? `phase-${index}` : "phase-unknown";
}

// Known phases first, in the loop's order; `step` is their frame and no phase.
export function inOrder(names) {
  const rank = (name) => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length);
  return names.filter((name) => name !== "step").sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
}

// Validation and saving happen between steps.
export function isOutside(name) {
  return OUTSIDE.has(name);
}
