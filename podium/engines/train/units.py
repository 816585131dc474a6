"""What stays together in a micro-batch: the rows of one prompt, so that it goes through the model once.

A unit that would exceed the token budget is cut, unless the rows have a column `unit`: rows of one number there (and of
one prompt) are compared by the loss and never part. With a limit in rows instead of tokens every row is a unit of its
own, since that limit counts rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tensordict import TensorDict

from podium.engines.train.micro_batches import MicroBatchLimits
from podium.engines.train.packing import prompt_numbers, row_lengths

UNIT = "unit"
"""The column of rows that must stay together."""

Cost = Callable[[int], float]
"""The cost of a sequence of so many tokens."""


@dataclass(frozen=True)
class Unit:
    rows: list[int]
    tokens: int
    cost: float


def make_units(rows: TensorDict, limits: MicroBatchLimits, cost: Cost) -> list[Unit]:
    """Units in the order of their first rows. A prompt's tokens and cost count once per unit."""
    if len(rows) == 0:
        return []
    lengths = row_lengths(rows)
    if UNIT in rows.keys():  # noqa: SIM118  (a TensorDict iterates over its rows)
        return _given_units(rows, lengths, cost)
    if limits.max_rows is not None:
        return [Unit([row], length, cost(length)) for row, length in enumerate(lengths)]
    numbers, prompts = prompt_numbers(rows)
    members: dict[int, list[int]] = {}
    for row, number in enumerate(numbers.tolist()):
        members.setdefault(number, []).append(row)
    prompt_lengths = prompts.tolist()
    return [
        _unit(part, prompt_lengths[group[0]], lengths, cost)
        for group in members.values()
        for part in _cut(group, prompt_lengths[group[0]], lengths, limits.max_tokens)
    ]


def _given_units(rows: TensorDict, lengths: list[int], cost: Cost) -> list[Unit]:
    prompts = prompt_numbers(rows)[1].tolist()
    members: dict[int, list[int]] = {}
    for row, number in enumerate(rows[UNIT].tolist()):
        members.setdefault(number, []).append(row)
    return [_unit(group, prompts[group[0]], lengths, cost) for group in members.values()]


def rows_of(units: Iterable[Unit]) -> list[int]:
    return [row for unit in units for row in unit.rows]


def _cut(group: list[int], prompt: int, lengths: list[int], max_tokens: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    tokens = prompt
    for row in group:
        tail = lengths[row] - prompt
        if parts[-1] and tokens + tail > max_tokens:
            parts.append([])
            tokens = prompt
        parts[-1].append(row)
        tokens += tail
    return parts


def _unit(rows: list[int], prompt: int, lengths: list[int], cost: Cost) -> Unit:
    tokens = prompt + sum(lengths[row] - prompt for row in rows)
    return Unit(rows, tokens, cost(prompt) + sum(cost(lengths[row]) - cost(prompt) for row in rows))
