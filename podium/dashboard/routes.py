"""The GET endpoints for curves, steps, events and configs: parameters in, JSON out. Samples are in sample_routes.py.

Handlers are plain functions, so they run on threads and a long read never holds up the page.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from podium.dashboard.downsample import bucket_edges, bucket_means, clip_range, min_max, smooth, to_json
from podium.dashboard.live import Watcher
from podium.dashboard.params import Params
from podium.dashboard.runs import Run, RunStore
from podium.dashboard.status import severity

MAX_EVENTS = 1000
MAX_LOG_BYTES = 1 << 17


class RunRoutes:
    def __init__(self, store: RunStore, watcher: Watcher) -> None:
        self._store = store
        self._watcher = watcher

    def routes(self) -> list[Route]:
        handlers = {
            "runs": self.runs,
            "metrics": self.metrics,
            "curves": self.curves,
            "timeline": self.timeline,
            "step": self.step,
            "events": self.events,
            "log": self.log,
            "config": self.config,
            "live": self.live,
        }
        return [Route(f"/api/{name}", handler) for name, handler in handlers.items()]

    def runs(self, request: Request) -> JSONResponse:
        """Every run at a glance."""
        root = self._store.folders.root
        return JSONResponse(
            {"folder": root.name, "now": time.time(), "runs": [run.summary() for run in self._store.runs()]}
        )

    def metrics(self, request: Request) -> JSONResponse:
        """The metric names of each asked run."""
        return JSONResponse({run.name: run.metric_names() for run in Params(request).runs(self._store)})

    def curves(self, request: Request) -> JSONResponse:
        """Some metrics of some runs, between two steps, in few points; smoothed beside raw when asked."""
        params = Params(request)
        names, points = params.texts("metric"), params.count("points", 600, high=5000)
        first, last = params.integer("from"), params.integer("to")
        weight = min(0.999, max(0.0, params.number("smooth") or 0.0))
        curves = []
        for run in params.runs(self._store):
            for name, (steps, values) in run.curves(names).items():
                if not len(steps):
                    continue
                curve = {"run": run.name, "metric": name, "num_points": len(steps), "last": to_json(values[-1:])[0]}
                shown_steps, shown = min_max(*clip_range(steps, values, first, last), points)
                curve |= {"steps": shown_steps.tolist(), "values": to_json(shown)}
                if weight:
                    soft_steps, soft = min_max(*clip_range(steps, smooth(values, weight), first, last), points)
                    curve |= {"smooth_steps": soft_steps.tolist(), "smooth": to_json(soft)}
                curves.append(curve)
        return JSONResponse({"curves": curves})

    def timeline(self, request: Request) -> JSONResponse:
        """Seconds per phase over the steps, each bar the mean of its steps."""
        params = Params(request)
        run = params.run(self._store)
        return JSONResponse(_timeline(run, params))

    def step(self, request: Request) -> JSONResponse:
        """Every metric of one step; of the newest when none is named."""
        params = Params(request)
        return JSONResponse(params.run(self._store).step_record(params.integer("step")))

    def events(self, request: Request) -> JSONResponse:
        """The newest events with their severity, newest first, and rows that were set aside."""
        run = Params(request).run(self._store)
        events = run.events()
        newest = [
            {"severity": severity(str(event.get("kind", ""))), "number": number, "event": event}
            for number, event in list(enumerate(events))[-MAX_EVENTS:]
        ]
        return JSONResponse({"total": len(events), "events": newest[::-1], "quarantine": run.quarantine(200)})

    def log(self, request: Request) -> JSONResponse:
        """The end of the console log."""
        tail = Params(request).run(self._store).log_tail(MAX_LOG_BYTES)
        return JSONResponse({"text": tail.decode("utf-8", "replace")})

    def config(self, request: Request) -> JSONResponse:
        """The settings of each asked run by dotted key."""
        return JSONResponse({run.name: run.config() for run in Params(request).runs(self._store)})

    async def live(self, request: Request) -> StreamingResponse:
        """Changes as they happen."""
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(self._watcher.subscribe(), media_type="text/event-stream", headers=headers)


def _timeline(run: Run, params: Params) -> dict[str, Any]:
    names = [name for name in run.metric_names() if name.startswith("timing_s/") and name.count("/") == 1]
    curves = run.curves(names)
    steps = curves.get("timing_s/step", (np.empty(0, np.int64), np.empty(0)))[0]
    first, last = params.integer("from"), params.integer("to")
    steps = steps[(steps >= (first or 0)) & (steps <= (2**62 if last is None else last))]
    edges = bucket_edges(steps, params.count("buckets", 160, high=1000))
    phases = {}
    for name, (at, values) in curves.items():
        aligned = np.full(len(steps), np.nan)
        common, here, there = np.intersect1d(steps, at, assume_unique=True, return_indices=True)
        if len(common):
            aligned[here] = values[there]
            # A phase that a step did not have took no time of it.
            phases[name.removeprefix("timing_s/")] = to_json(bucket_means(np.nan_to_num(aligned), edges))
    starts = steps[edges[:-1]] if len(steps) else steps
    ends = steps[edges[1:] - 1] if len(steps) else steps
    return {"first": starts.tolist(), "last": ends.tolist(), "phases": phases}
