// Curves for charts: requests made at the same moment travel together, a few metrics each so that the first comes soon.

import { get } from "../api.js";

const PER_REQUEST = 4;

export class CurveLoader {
  #waiting = new Map();
  #timer = 0;
  #closing = new AbortController();

  constructor(runs) {
    this.runs = runs;
  }

  close() {
    clearTimeout(this.#timer);
    this.#closing.abort();
  }

  // The curves of a metric, one per run that has it. `options`: {smooth, range, points}
  load(metric, options) {
    return new Promise((resolve, reject) => {
      this.#waiting.set(metric, { options, resolve, reject });
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#send(), 5);
    });
  }

  #send() {
    const jobs = [...this.#waiting];
    this.#waiting.clear();
    this.#request(jobs.slice(0, 1)); // the first chart waits for no other
    for (let start = 1; start < jobs.length; start += PER_REQUEST) this.#request(jobs.slice(start, start + PER_REQUEST));
  }

  async #request(jobs) {
    const { smooth, range, points } = jobs[0][1].options;
    const params = { run: this.runs, metric: jobs.map(([metric]) => metric), points };
    if (smooth) params.smooth = smooth;
    if (range) [params.from, params.to] = range;
    try {
      const { curves } = await get("curves", params, this.#closing.signal);
      for (const [metric, job] of jobs) job.resolve(curves.filter((curve) => curve.metric === metric));
    } catch (error) {
      if (!this.#closing.signal.aborted) for (const [, job] of jobs) job.reject(error);
    }
  }
}
