// The address tells everything that is shown: #/view?run=a&run=b&... A view may change its own part without a reload.

export function current() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path || "runs", params: new URLSearchParams(query || "") };
}

export function link(view, params = new URLSearchParams()) {
  const text = new URLSearchParams(params).toString().replaceAll("%2F", "/");
  return `#/${view}${text ? `?${text}` : ""}`;
}

// A link to a view of some runs. Within the same view its settings stay; between views only the runs carry over.
export function linkWithRuns(view, runs) {
  const here = current();
  const params = here.view === view ? here.params : new URLSearchParams();
  params.delete("run");
  params.delete("line");
  for (const run of runs) params.append("run", run);
  return link(view, params);
}

export function go(address) {
  location.hash = address;
}

// Remember a view's state in the address without leaving the view.
export function remember(changes) {
  const { view, params } = current();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "" || value === false) params.delete(name);
    else params.set(name, value === true ? "1" : value);
  }
  history.replaceState(null, "", link(view, params));
}
