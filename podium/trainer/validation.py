"""Validation: generate for held-out prompts, score, report by data source.

Each prompt gets `val_kwargs.n` samples. A number `var` (the score, and every number the reward function returned)
becomes `mean@N`, and with several samples also `std@N`, `best@k`, `worst@k` and, where the reward function returns a
`pred`, `maj@k` for k = 2, 4, 8, ..., N: the expected best, worst and majority of k samples, by the unbiased closed
forms, averaged over prompts. A prompt that lost samples counts for the k it still has. `acc` is the core variable where
the reward function returns one, else the score, reported as `reward`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from podium.algorithms import best_at_n, maj_at_n, worst_at_n
from podium.protocol import DataProto
from podium.rewards.manager import RewardResult
from podium.tracking import Sample
from podium.trainer.mini_batches import group_index
from podium.trainer.samples import make_samples

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ValidationResult:
    metrics: dict[str, float]
    samples: list[Sample]


def validate(
    batches: Iterable[DataProto],
    generate: Callable[[DataProto], DataProto],
    reward_fn: Callable[[DataProto], RewardResult],
    decode: Callable[[Sequence[int]], str],
) -> ValidationResult:
    """`generate` returns the rows of its argument, repeated per sample, with responses."""
    samples: list[Sample] = []
    for prompts in batches:
        batch = generate(prompts)
        samples += make_samples(batch, reward_fn(batch), decode)
    metrics = summarize([sample for sample in samples if sample.score is not None])
    metrics["val/num_unscored"] = float(sum(sample.score is None for sample in samples))
    return ValidationResult(metrics, samples)


def summarize(samples: Sequence[Sample]) -> dict[str, float]:
    """`val-core|val-aux/<source>/<var>/<statistic>@N` and `val/test_score/<source>`."""
    by_source: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_source[sample.data_source].append(sample)
    metrics: dict[str, float] = {}
    for source, members in sorted(by_source.items()):
        groups = group_index([sample.uid for sample in members])
        variables = _variables(members)
        answers = _answers(members)
        core = "acc" if "acc" in variables else "reward"
        for name, values in variables.items():
            kind = "val-core" if name == core else "val-aux"
            statistics = _statistics(np.array(values), groups, answers)
            metrics |= {f"{kind}/{source}/{name}/{statistic}": v for statistic, v in statistics.items()}
        metrics[f"val/test_score/{source}"] = float(np.mean(variables["reward"]))
    return metrics


def _variables(members: Sequence[Sample]) -> dict[str, list[float]]:
    """The score as `reward`, and every key of the reward function that is a number in all samples."""
    variables = {"reward": [float(sample.score or 0.0) for sample in members]}
    for key in members[0].extra:
        values = [sample.extra.get(key) for sample in members]
        if all(isinstance(value, bool | int | float) for value in values):
            variables[key] = [float(value) for value in values if value is not None]
    return variables


def _statistics(values: Array, groups: Array, answers: Sequence[Hashable] | None) -> dict[str, float]:
    members = [np.flatnonzero(groups == g) for g in range(int(groups.max()) + 1)]
    n = max(len(rows) for rows in members)
    statistics = {f"mean@{n}": float(np.mean([values[rows].mean() for rows in members]))}
    if n == 1:
        return statistics
    several = [values[rows].std(ddof=1) for rows in members if len(rows) > 1]
    statistics[f"std@{n}"] = float(np.mean(several))
    for k in draws(n):
        enough = [rows for rows in members if len(rows) >= k]
        scores = [values[rows].tolist() for rows in enough]
        statistics[f"best@{k}"] = float(np.mean([best_at_n(each, k) for each in scores]))
        statistics[f"worst@{k}"] = float(np.mean([worst_at_n(each, k) for each in scores]))
        if answers is not None:
            votes = [[answers[row] for row in rows.tolist()] for rows in enough]
            majority = [maj_at_n(vote, each, k) for vote, each in zip(votes, scores, strict=True)]
            statistics[f"maj@{k}"] = float(np.mean(majority))
    return statistics


def draws(n: int) -> list[int]:
    """The powers of two from 2 to below n, and n."""
    return [*(2**i for i in range(1, n.bit_length()) if 2**i < n), n]


def _answers(members: Sequence[Sample]) -> list[Hashable] | None:
    """What each sample answered, to be voted on; a sample without an answer is an answer of its own."""
    if not any("pred" in sample.extra for sample in members):
        return None
    given = [sample.extra.get("pred") for sample in members]
    return [("none", place) if answer is None else str(answer).strip() for place, answer in enumerate(given)]
