"""The GET endpoints for samples: the steps with a dump, pages, groups, one sample, one prompt over the steps."""

from __future__ import annotations

from typing import Any, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from podium.dashboard.params import Params
from podium.dashboard.runs import Kind, Run, RunStore
from podium.dashboard.samples import GROUP_SORTS, SORTS, Query, SampleFile, excerpt

KINDS = ("rollouts", "validation")
MAX_PAGE = 200
MAX_HISTORY = 200
"""Dumps that are searched for one prompt; spread over the run when it has more."""


class SampleRoutes:
    def __init__(self, store: RunStore) -> None:
        self._store = store

    def routes(self) -> list[Route]:
        handlers = {
            "sample-steps": self.steps,
            "samples": self.samples,
            "facets": self.facets,
            "groups": self.groups,
            "sample": self.sample,
            "history": self.history,
        }
        return [Route(f"/api/{name}", handler) for name, handler in handlers.items()]

    def steps(self, request: Request) -> JSONResponse:
        """The steps that have a dump of each kind."""
        run = Params(request).run(self._store)
        return JSONResponse({kind: run.sample_steps(cast(Kind, kind)) for kind in KINDS})

    def samples(self, request: Request) -> JSONResponse:
        """A page of samples."""
        params = Params(request)
        dump = self._dump(params)
        lines = dump.select(_query(params))
        offset, limit = params.integer("offset", 0) or 0, params.count("limit", 50, MAX_PAGE)
        page = dump.page(lines[offset : offset + limit])
        return JSONResponse({"total": dump.num_samples, "matched": len(lines), "offset": offset, "samples": page})

    def facets(self, request: Request) -> JSONResponse:
        """What the samples of a dump can be filtered by."""
        return JSONResponse(self._dump(Params(request)).facets())

    def groups(self, request: Request) -> JSONResponse:
        """A page of prompts, each with the scores of its samples."""
        params = Params(request)
        dump = self._dump(params)
        groups = dump.groups(_query(params), params.choice("sort", GROUP_SORTS), params.integer("desc") == 1)
        offset, limit = params.integer("offset", 0) or 0, params.count("limit", 50, MAX_PAGE)
        page = groups[offset : offset + limit]
        for group in page:
            group["prompt"] = excerpt(0, dump.record(group["samples"][0]["line"]) or {})["input"]
        return JSONResponse({"matched": len(groups), "offset": offset, "groups": page})

    def sample(self, request: Request) -> JSONResponse:
        """One sample whole, and the other samples of its prompt."""
        params = Params(request)
        dump = self._dump(params)
        record = dump.record(params.integer("line", 0) or 0)
        if record is None:
            raise HTTPException(404, "no such sample in this dump")
        uid = record.get("uid")
        siblings = dump.page(dump.lines_of_prompt(uid)[:MAX_PAGE]) if isinstance(uid, str) and uid else []
        return JSONResponse({"record": record, "siblings": siblings})

    def history(self, request: Request) -> JSONResponse:
        """What was written for one prompt, step by step."""
        params = Params(request)
        run, kind = params.run(self._store), cast(Kind, params.choice("kind", KINDS))
        uid = params.text("uid") or ""
        steps = run.sample_steps(kind)
        spread = max(1, -(-len(steps) // MAX_HISTORY))
        found = [entry for step in steps[::-1][::spread][::-1] if (entry := _at_step(run, kind, step, uid))]
        return JSONResponse({"searched_every": spread, "steps": found})

    def _dump(self, params: Params) -> SampleFile:
        run, kind = params.run(self._store), params.choice("kind", KINDS)
        step = params.integer("step", 0)
        assert step is not None
        dump = run.samples(cast(Kind, kind), step)
        if dump is None:
            raise HTTPException(404, f"{run.name} has no {kind} of step {step}")
        return dump


def _query(params: Params) -> Query:
    scored = params.text("scored")
    return Query(
        sort=params.choice("sort", tuple(dict.fromkeys(SORTS + GROUP_SORTS))),
        descending=params.integer("desc") == 1,
        source=params.text("source"),
        stop_reason=params.text("stop"),
        uid=params.text("uid"),
        text=(params.text("text") or "")[:1000],
        min_score=params.number("min_score"),
        max_score=params.number("max_score"),
        scored=None if scored is None else scored == "1",
    )


def _at_step(run: Run, kind: Kind, step: int, uid: str) -> dict[str, Any] | None:
    dump = run.samples(kind, step)
    page = dump.page(dump.lines_of_prompt(uid)[:64]) if dump is not None and uid else []
    if not page:
        return None
    scores = [sample["score"] for sample in page if sample["score"] is not None]
    mean = sum(scores) / len(scores) if scores else None
    return {"step": step, "num_samples": len(page), "mean": mean, "first": page[0]}
