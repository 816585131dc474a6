"""Validation: generate for held-out prompts, score, report by data source.

Each prompt gets `val_kwargs.n` samples. A number `var` (the score, and every number the reward function returned)
becomes `mean@N`, and with several samples also `std@N`, `best@N` and `worst@N`, averaged over prompts. `acc` is the
core variable where the reward function returns one, else the score, reported as `reward`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from podium.protocol import DataProto
from podium.rewards.manager import RewardManager
from podium.tracking import Sample
from podium.trainer.mini_batches import group_index
from podium.trainer.samples import make_samples


@dataclass(frozen=True)
class ValidationResult:
    metrics: dict[str, float]
    samples: list[Sample]


def validate(
    batches: Iterable[DataProto],
    generate: Callable[[DataProto], DataProto],
    reward_fn: RewardManager,
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
        core = "acc" if "acc" in variables else "reward"
        for name, values in variables.items():
            kind = "val-core" if name == core else "val-aux"
            statistics = _statistics(np.array(values), groups)
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


def _statistics(values: np.ndarray[Any, Any], groups: np.ndarray[Any, Any]) -> dict[str, float]:
    per_prompt = [values[groups == g] for g in range(int(groups.max()) + 1)]
    n = max(len(samples) for samples in per_prompt)
    statistics = {f"mean@{n}": float(np.mean([samples.mean() for samples in per_prompt]))}
    if n > 1:
        statistics[f"std@{n}"] = float(np.mean([samples.std() for samples in per_prompt]))
        statistics[f"best@{n}"] = float(np.mean([samples.max() for samples in per_prompt]))
        statistics[f"worst@{n}"] = float(np.mean([samples.min() for samples in per_prompt]))
    return statistics
