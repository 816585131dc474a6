// A prompt or response in its parts: chat turns, and the tags that models and environments write. Only cuts text.

const CHATS = [
  { start: /<\|im_start\|>(\w+)\n/g, end: "<|im_end|>" },
  { start: /<\|start_header_id\|>(\w+)<\|end_header_id\|>\n*/g, end: "<|eot_id|>" },
  { start: /<start_of_turn>(\w+)\n/g, end: "<end_of_turn>" },
];
const TAGS = /<(think|search|information|observation|tool_call|tool_response|result|answer|code)>([\s\S]*?)<\/\1>/g;
// What the environment wrote, not the model.
const FROM_OUTSIDE = new Set(["information", "observation", "tool_response", "result"]);

// [{label, text, kind: "turn" | "tag" | "outside" | "text"}]
export function segments(text) {
  const turns = cutTurns(text);
  return turns.flatMap((turn) => (turn.kind === "text" ? cutTags(turn.text) : [turn]));
}

function cutTurns(text) {
  for (const { start, end } of CHATS) {
    const found = [...text.matchAll(start)];
    if (!found.length) continue;
    const parts = found[0].index > 0 ? [{ label: "", text: text.slice(0, found[0].index), kind: "text" }] : [];
    found.forEach((match, index) => {
      const stop = found[index + 1]?.index ?? text.length;
      const body = text.slice(match.index + match[0].length, stop).replace(end, "").trim();
      parts.push({ label: match[1], text: body, kind: "turn" });
    });
    return parts.filter((part) => part.text.trim());
  }
  return [{ label: "", text, kind: "text" }];
}

function cutTags(text) {
  const parts = [];
  let at = 0;
  for (const match of text.matchAll(TAGS)) {
    parts.push({ label: "", text: text.slice(at, match.index), kind: "text" });
    parts.push({ label: match[1], text: match[2].trim(), kind: FROM_OUTSIDE.has(match[1]) ? "outside" : "tag" });
    at = match.index + match[0].length;
  }
  parts.push({ label: "", text: text.slice(at), kind: "text" });
  return parts.filter((part) => part.text.trim());
}

// The last thing a user said: what a list shows of a prompt.
export function question(text) {
  const turns = cutTurns(text);
  const user = turns.findLast((turn) => turn.label === "user") ?? turns.at(-1);
  return user?.text.trim() || text.trim() || "(empty prompt)";
}
