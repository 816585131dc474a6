"""RewardScorer: a run's rewards behind `submit`: rows in, futures out.

Cheap built-in functions run at once, right here; everything else (functions of the user's own, math and code checking,
remote rewards) goes to reward processes, which start when the first such row comes. The trainer and the rollout workers
each hold one; a rollout worker submits responses while others are still being written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from podium.config.schema import RewardConfig
from podium.rewards.calling import RewardFunction, RewardFunctions
from podium.rewards.records import Outcome, RewardRow
from podium.rewards.registry import DEFAULT, default_compute_score, is_cheap, load_functions, make_spec
from podium.rewards.runner import RewardRunner


class RewardScorer:
    def __init__(self, config: RewardConfig) -> None:
        self.spec = make_spec(config)
        self.num_processes = config.num_processes
        self._inline = inline_functions(default_compute_score)
        self._runner: RewardRunner | None = None

    def uses_processes(self, data_sources: Iterable[str]) -> bool:
        """Whether rewards of these sources run in processes, and so beside generation."""
        return self.num_processes > 0 and not all(self._runs_inline(source) for source in data_sources)

    def submit(self, rows: Sequence[RewardRow]) -> list[Future[Outcome]]:
        """One future per row, in order; each always gets an outcome."""
        if self.num_processes == 0:
            return _score_here(load_functions(self.spec), rows)
        away = [row for row in rows if not self._runs_inline(row.data_source)]
        there = iter(self._processes().submit(away) if away else [])
        return [
            _score_here(self._inline, [row])[0] if self._runs_inline(row.data_source) else next(there) for row in rows
        ]

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _runs_inline(self, source: str) -> bool:
        return list(self.spec.functions) == [DEFAULT] and is_cheap(source)

    def _processes(self) -> RewardRunner:
        if self._runner is None:
            together = load_functions(self.spec).together
            self._runner = RewardRunner(self.spec, self.num_processes, together)
        return self._runner


class InlineScorer:
    """A plain function, called at once in this process, without a time limit."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._functions = inline_functions(function)

    def uses_processes(self, data_sources: Iterable[str]) -> bool:
        return False

    def submit(self, rows: Sequence[RewardRow]) -> list[Future[Outcome]]:
        return _score_here(self._functions, rows)

    def close(self) -> None:
        """Nothing to end."""


def inline_functions(function: Callable[..., Any]) -> RewardFunctions:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return RewardFunctions([RewardFunction(name, 1.0, function, {})])


def _score_here(functions: RewardFunctions, rows: Sequence[RewardRow]) -> list[Future[Outcome]]:
    futures: list[Future[Outcome]] = [Future() for _ in rows]
    for place, outcome in functions.score(rows):
        futures[place].set_result(outcome)
    return futures
