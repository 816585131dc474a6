"""Rewards a Python program holds: functions of any form Podium knows, and sequence-classification models.

Functions run in a thread of this process (a notebook's functions exist nowhere else), so they have no time limit; one
given as `file.py:function` or by a built-in name alone runs in reward processes, with the limits of `podium train`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from podium.errors import ConfigError
from podium.plugins import load_function
from podium.rewards.calling import RewardFunction, RewardFunctions
from podium.rewards.records import Outcome, RewardRow
from podium.rewards.registry import FUNCTIONS, builtin
from podium.rewards.remote import is_address


@dataclass
class Rewards:
    """What scores the responses, sorted by kind."""

    functions: list[tuple[Callable[..., Any], float]] = field(default_factory=list)
    references: dict[str, float] = field(default_factory=dict)
    """Functions by name, when all of them are."""
    model: Any = None
    """A module or the path of a folder; at most one."""
    model_weight: float = 1.0

    @property
    def has_rule(self) -> bool:
        return bool(self.functions or self.references)


def sort_rewards(given: Any, weights: Sequence[float] | None = None) -> Rewards:
    """`given`: a function, a name, a model, or a list of them."""
    items = list(given) if isinstance(given, list | tuple) else [given]
    if not items or any(item is None for item in items):
        raise ConfigError("there is no reward: give reward_funcs (or reward_model) a function, a name or a model")
    weights = [1.0] * len(items) if weights is None else list(weights)
    if len(weights) != len(items):
        raise ConfigError(f"reward_weights has {len(weights)} numbers for {len(items)} rewards; give one for each")
    rewards = Rewards()
    named = all(isinstance(item, str) and _is_function_name(item) for item in items)
    for item, weight in zip(items, weights, strict=True):
        if named:
            rewards.references[item] = weight
        elif isinstance(item, str) and _is_function_name(item):
            rewards.functions.append((load_function(item, "reward") if ":" in item else builtin(item), weight))
        elif callable(item) and not hasattr(item, "save_pretrained"):
            rewards.functions.append((item, weight))
        elif rewards.model is None:
            rewards.model, rewards.model_weight = item, weight
        else:
            raise ConfigError("there are two reward models; one can be used, beside any number of functions")
    return rewards


def _is_function_name(word: str) -> bool:
    return word in FUNCTIONS or is_address(word) or (":" in word and not Path(word).is_dir() and "builtin:" not in word)


class FunctionScorer:
    """Python functions behind the reward manager's `submit`, called in one thread: a notebook's own event loop is
    running in the main one."""

    def __init__(self, functions: Sequence[tuple[Callable[..., Any], float]]) -> None:
        names = _names([function for function, _ in functions])
        parts = [
            RewardFunction(name, weight, function, {})
            for name, (function, weight) in zip(names, functions, strict=True)
        ]
        self._functions = RewardFunctions(parts)
        self._thread = ThreadPoolExecutor(1, "rewards")

    def uses_processes(self, data_sources: Iterable[str]) -> bool:
        return False

    def submit(self, rows: Sequence[RewardRow]) -> list[Future[Outcome]]:
        futures: list[Future[Outcome]] = [Future() for _ in rows]
        self._thread.submit(self._score, list(rows), futures)
        return futures

    def _score(self, rows: Sequence[RewardRow], futures: Sequence[Future[Outcome]]) -> None:
        try:
            for place, outcome in self._functions.score(rows):
                futures[place].set_result(outcome)
        except BaseException as error:  # noqa: BLE001  whoever waits for a score must hear of it
            for future in futures:
                if not future.done():
                    future.set_exception(error)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _names(functions: Sequence[Callable[..., Any]]) -> list[str]:
    """A name for each in metrics; equal ones are numbered."""
    plain = [str(getattr(function, "__name__", type(function).__name__)) for function in functions]
    return [name if plain.count(name) == 1 else f"{name}_{place}" for place, name in enumerate(plain)]
