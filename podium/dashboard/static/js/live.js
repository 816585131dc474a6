// Changes as they happen: server-sent events into the store. The browser reconnects by itself.

import { get } from "./api.js";
import { mergeRuns, setRuns } from "./store.js";

export function watch(indicator, onFolder) {
  const source = new EventSource("api/live");
  let isLoaded = false;

  async function load() {
    try {
      const answer = await get("runs");
      onFolder(answer.folder);
      setRuns(answer.runs, answer.now);
      isLoaded = true;
    } catch (error) {
      show("offline", error.message);
      setTimeout(() => !isLoaded && load(), 2000);
    }
  }

  function show(state, reason = "") {
    indicator.className = `live live-${state}`;
    indicator.textContent = state;
    indicator.title = reason;
  }

  source.addEventListener("hello", () => {
    show("live", "changes appear as they are written");
    load();
  });
  source.addEventListener("resync", load);
  source.addEventListener("runs", (event) => {
    const { changed, gone } = JSON.parse(event.data);
    if (isLoaded) mergeRuns(changed, gone);
  });
  source.addEventListener("error", () => show("offline", "the server does not answer; trying again"));
  load();
}
