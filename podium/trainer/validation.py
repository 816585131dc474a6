"""Validation: generate for held-out prompts, score, report by data source.

Each prompt gets `val_kwargs.n` samples. A number `var` (the score, and every number the reward function returned)
becomes `mean@N`, and with several samples also `std@N`, `best@N` and `worst@N`, averaged over prompts. `acc` is the core
variable where the reward function returns one, else the score.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from podium.protocol import DataProto
from podium.rewards.manager import RewardManager
from podium.trainer.mini_batches import group_index

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ValidationResult:
    metrics: dict[str, float]
    rows: list[dict[str, Any]]  # one per sample, as the validation dump has them


def validate(
    batches: Iterator[DataProto],
    generate: Callable[[DataProto], DataProto],
    reward_fn: RewardManager,
    render_prompt: Callable[[Sequence[int]], str],
    step: int,
) -> ValidationResult:
    """`generate` returns the rows of its argument repeated per sample, with responses."""
    rows: list[dict[str, Any]] = []
    unscored = 0
    for prompts in batches:
        batch = generate(prompts)
        result = reward_fn(batch)
        scored = ~result.scores.isnan()
        unscored += int((~scored).sum())
        rows += [row for row, ok in zip(dump_rows(batch, result, render_prompt, step), scored.tolist(), strict=True) if ok]
    metrics = summarize(rows)
    metrics["val/num_unscored"] = float(unscored)
    return ValidationResult(metrics, rows)


def dump_rows(batch: DataProto, result: Any, render_prompt: Callable[[Sequence[int]], str], step: int) -> list[dict[str, Any]]:
    """The samples of a batch as the run folder keeps them."""
    tensors, columns = batch.tensors(), batch.non_tensor_batch
    width = tensors["prompts"].shape[1]
    lengths = tensors["attention_mask"][:, :width].sum(-1).tolist()
    rows = []
    for i in range(len(batch)):
        row = {
            "input": render_prompt(tensors["prompts"][i, width - int(lengths[i]) :].tolist()),
            "output": result.texts[i],
            "gts": columns["ground_truth"][i],
            "score": float(result.scores[i]),
            "step": step,
            "uid": columns["uid"][i],
            "data_source": columns["data_source"][i],
            "stop_reason": str(columns["stop_reason"][i]),
            "turns": int(columns["num_turns"][i]) if "num_turns" in columns else 1,
            "policy_version": int(tensors["policy_version"][i]),
        }
        rows.append(row | {name: values[i] for name, values in result.extra.items()})
    return rows


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """`val-core|val-aux/<source>/<var>/<statistic>@N` and `val/test_score/<source>`."""
    by_source: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_source[row["data_source"]].append(row)
    metrics: dict[str, float] = {}
    for source, members in sorted(by_source.items()):
        groups = group_index([row["uid"] for row in members])
        core = "acc" if all(_is_number(row.get("acc")) for row in members) else "score"
        for var in _variables(members):
            values = np.array([float(row[var]) for row in members])
            name = "reward" if var == "score" else var
            kind = "val-core" if var == core else "val-aux"
            metrics |= {f"{kind}/{source}/{name}/{k}": v for k, v in _statistics(values, groups).items()}
        metrics[f"val/test_score/{source}"] = float(np.mean([row["score"] for row in members]))
    return metrics


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def _variables(members: Sequence[dict[str, Any]]) -> list[str]:
    known = {"step", "turns", "policy_version"}
    return [key for key in members[0] if key not in known and all(_is_number(row.get(key)) for row in members)]


def _statistics(values: Numbers, groups: Numbers) -> dict[str, float]:
    per_prompt = [values[groups == g] for g in range(int(groups.max()) + 1)]
    n = max(len(samples) for samples in per_prompt)
    statistics = {f"mean@{n}": float(np.mean([samples.mean() for samples in per_prompt]))}
    if n > 1:
        statistics[f"std@{n}"] = float(np.mean([samples.std() for samples in per_prompt]))
        statistics[f"best@{n}"] = float(np.mean([samples.max() for samples in per_prompt]))
        statistics[f"worst@{n}"] = float(np.mean([samples.min() for samples in per_prompt]))
    return statistics
