"""Query parameters as typed values. A bad one is a 400 that says what is allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request

from podium.dashboard.runs import Run, RunStore

MAX_LIST = 100


class Params:
    def __init__(self, request: Request) -> None:
        self._given = request.query_params

    def text(self, name: str) -> str | None:
        """None when absent; an empty text is a value."""
        return self._given.get(name)

    def texts(self, name: str) -> list[str]:
        return list(dict.fromkeys(self._given.getlist(name)))[:MAX_LIST]

    def integer(self, name: str, default: int | None = None, low: int = 0, high: int = 2**62) -> int | None:
        text = self._given.get(name)
        if text is None or text == "":
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
            raise HTTPException(400, f"{name}={text[:40]!r} is not a whole number from {low} to {high}")
        return int(text)

    def count(self, name: str, default: int, high: int) -> int:
        """A number of things to return, kept to what is sensible."""
        value = self.integer(name, default)
        assert value is not None
        return max(1, min(value, high))

    def number(self, name: str) -> float | None:
        text = self._given.get(name)
        if text is None or text == "":
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise HTTPException(400, f"{name}={text[:40]!r} is not a number")
        return value

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        text = self._given.get(name, allowed[0])
        if text not in allowed:
            raise HTTPException(400, f"{name}={text[:40]!r} is unknown; one of {', '.join(allowed)}")
        return text

    def run(self, store: RunStore) -> Run:
        return find_run(store, self._given.get("run", ""))

    def runs(self, store: RunStore) -> list[Run]:
        return [find_run(store, name) for name in self.texts("run")]


def find_run(store: RunStore, name: str) -> Run:
    run = store.find(name)
    if run is None:
        raise HTTPException(404, f"no run {name[:200]!r} in this folder")
    return run
