// Reading from the server. Every request is a GET with a time limit; an answer that is no longer wanted can be dropped.

const LIMIT_MS = 60_000;

export async function get(name, params = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== null && item !== undefined && item !== "") query.append(key, item);
    }
  }
  const limit = AbortSignal.timeout(LIMIT_MS);
  const response = await fetch(`api/${name}?${query}`, { signal: signal ? AbortSignal.any([signal, limit]) : limit });
  const body = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(body.error || `the server answered ${response.status}`);
  return body;
}

// Only the newest request of a place counts: asking again drops the one under way. Dropped ones give undefined.
export class Latest {
  #controller = null;

  async get(name, params) {
    this.#controller?.abort();
    const controller = new AbortController();
    this.#controller = controller;
    try {
      return await get(name, params, controller.signal);
    } catch (error) {
      if (controller.signal.aborted) return undefined;
      throw error;
    }
  }

  drop() {
    this.#controller?.abort();
  }
}
