"""Calling reward functions: which form one has, and several with weights as one.

Forms, told apart by their parameters: `f(data_source, solution_str, ground_truth, extra_info)` for one response
(verl's; other names are filled in that order); `f(prompts, completions, **columns)` (TRL's) and
`f(data_sources, solution_strs, ground_truths, extra_infos)` for many. Any of them may be async. This file runs inside a
reward process or, for cheap built-in functions, in the trainer's; it neither starts nor ends processes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from podium.plugins import Signature
from podium.rewards.records import Outcome, RewardRow, checked, failed, scored

ROW_NAMES = ("data_source", "solution_str", "ground_truth", "extra_info")
BATCH_NAMES = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
NOT_APPLICABLE = object()


@dataclass(frozen=True)
class RewardSpec:
    """Which functions score a run; it can be sent to another process."""

    functions: dict[str, float]
    """Weights by reference: a built-in name, `module:function`, `file.py:function` or an http address."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Offered by name to functions of the user's own."""
    timeout_s: float = 30.0
    http: dict[str, Any] = field(default_factory=dict)
    """Limits of remote rewards."""


class RewardFunction:
    """One function with its weight, its form found out once."""

    def __init__(self, name: str, weight: float, function: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
        self.name, self.weight, self.function = name, weight, function
        self.signature = Signature(function)
        names = self.signature.names
        self.takes_many = "completions" in names or "solution_strs" in names
        call = getattr(function, "__call__", None)  # noqa: B004  an instance may have an async __call__
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
        self._by_name = self.signature.takes_any or bool(names & set(ROW_NAMES))
        self._kwargs = self.signature.accepted(kwargs)

    @property
    def needs_answer(self) -> bool:
        """Whether it takes the ground truth, in one of verl's forms, and has no default for it."""
        if "completions" in self.signature.names:
            return False  # TRL's: a column may well hold None
        if self.takes_many or self._by_name:
            return bool(self.signature.required & {"ground_truth", "ground_truths"})
        return len(self.signature.required) > 2  # filled in verl's order, whatever the names

    def call_row(self, row: RewardRow) -> Any:
        values = (row.data_source, row.response, row.ground_truth, row.extra_info)
        if not self._by_name:
            return self.function(*values, **self._kwargs)
        offered = {**dict(zip(ROW_NAMES, values, strict=True)), "prompt": row.prompt}
        return self.function(**self.signature.accepted(offered), **self._kwargs)

    def call_many(self, rows: Sequence[RewardRow]) -> Any:
        if "completions" in self.signature.names:
            offered = trl_columns(rows)
        else:
            values = zip(*((r.data_source, r.response, r.ground_truth, r.extra_info) for r in rows), strict=True)
            offered = dict(zip(BATCH_NAMES, map(list, values), strict=True))
        return self.function(**self.signature.accepted(offered) | self._kwargs)


def trl_columns(rows: Sequence[RewardRow]) -> dict[str, Any]:
    """Prompts, completions (messages where the prompt is a conversation) and every column of the data."""
    extra = [row.extra_info if isinstance(row.extra_info, Mapping) else {} for row in rows]
    columns: dict[str, Any] = {
        name: [e.get(name) for e in extra] for name in dict.fromkeys(k for e in extra for k in e)
    }
    columns.setdefault("answer", [row.ground_truth for row in rows])
    return columns | {
        "prompts": [row.prompt for row in rows],
        "completions": [
            row.response if isinstance(row.prompt, str) else [{"role": "assistant", "content": row.response}]
            for row in rows
        ],
        "ground_truth": [row.ground_truth for row in rows],
        "data_source": [row.data_source for row in rows],
    }


class RewardFunctions:
    """Every function of a run as one: rows in, outcomes out.

    With several functions the score is their weighted sum, and each one's own score is kept under its name. A function
    that answers None for a response does not apply to it; when none applies, or one fails, the response is unscored.
    """

    def __init__(self, parts: Sequence[RewardFunction], timeout_s: float | None = None) -> None:
        self.parts, self.timeout_s = list(parts), timeout_s

    @property
    def together(self) -> bool:
        """Whether rows are scored together, not one after the other."""
        return any(part.takes_many or part.is_async for part in self.parts)

    def score(self, rows: Sequence[RewardRow]) -> Iterator[tuple[int, Outcome]]:
        """Outcomes with the place of their row, each as soon as it is known."""
        if not self.together:
            for place, row in enumerate(rows):
                yield place, self._combine([_guarded(part, row) for part in self.parts])
            return
        columns = asyncio.run(self._score_together(rows))
        for place in range(len(rows)):
            yield place, self._combine([column[place] for column in columns])

    async def _score_together(self, rows: Sequence[RewardRow]) -> list[list[Any]]:
        return list(await asyncio.gather(*(self._column(part, rows) for part in self.parts)))

    async def _column(self, part: RewardFunction, rows: Sequence[RewardRow]) -> list[Any]:
        """What a function returns for each row; an Outcome where it failed."""
        if part.takes_many:
            try:
                returned = part.call_many(rows)
                values = list(await returned if inspect.isawaitable(returned) else returned)
                if len(values) != len(rows):
                    raise ValueError(f"returned {len(values)} scores for {len(rows)} responses")
            except Exception as error:  # noqa: BLE001  a user's function may raise anything; its rows are unscored
                return [failed(part.name, error)] * len(rows)
            return [NOT_APPLICABLE if value is None else _read(part, value) for value in values]
        if part.is_async:
            return list(await asyncio.gather(*(self._await_row(part, row) for row in rows)))
        return [_guarded(part, row) for row in rows]

    async def _await_row(self, part: RewardFunction, row: RewardRow) -> Any:
        try:
            call: Awaitable[Any] = part.call_row(row)
            return _read(part, await asyncio.wait_for(call, self.timeout_s))
        except TimeoutError:
            return failed(part.name, f"no answer within {self.timeout_s:g} s", "timeout")
        except Exception as error:  # noqa: BLE001  a user's function may raise anything; the row is unscored
            return failed(part.name, error)

    def _combine(self, results: Sequence[Any]) -> Outcome:
        for result in results:
            if isinstance(result, Outcome):
                return result
        if len(self.parts) == 1:
            (only,) = results
            return failed(self.parts[0].name, "returned None") if only is NOT_APPLICABLE else scored(only)
        values: dict[str, Any] = {}
        total, applied = 0.0, 0
        for part, result in zip(self.parts, results, strict=True):
            if result is not NOT_APPLICABLE:
                total, applied = total + part.weight * result["score"], applied + 1
                values |= {key: value for key, value in result.items() if key != "score"} | {part.name: result["score"]}
        if not applied:
            return failed(" + ".join(part.name for part in self.parts), "every function returned None")
        return scored(values | {"score": total})


def _guarded(part: RewardFunction, row: RewardRow) -> Any:
    try:
        return _read(part, part.call_row(row))
    except Exception as error:  # noqa: BLE001  a user's function may raise anything; the row is unscored
        return failed(part.name, error)


def _read(part: RewardFunction, value: Any) -> Any:
    try:
        return checked(value)
    except ValueError as error:
        return failed(part.name, str(error))
