"""The samples of a batch as the run folder keeps them and the console shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from podium.protocol import DataProto
from podium.rewards.manager import RewardResult
from podium.tracking import Sample
from podium.trainer.episodes import EPISODE_COLUMNS


def make_samples(batch: DataProto, outcome: RewardResult, decode: Callable[[Sequence[int]], str]) -> list[Sample]:
    """One Sample per row; a row without a score has None."""
    tensors, columns = batch.tensors(), batch.non_tensor_batch
    width = tensors["prompts"].shape[1]
    lengths = tensors["attention_mask"][:, :width].sum(-1).tolist()
    unscored = torch.isnan(outcome.scores).tolist()
    episodes = {name: columns[name] for name in EPISODE_COLUMNS if name in columns}
    prompts: dict[object, str] = {}  # the samples of a prompt share its text
    samples = []
    for i, uid in enumerate(columns["uid"]):
        if uid not in prompts:
            prompts[uid] = decode(tensors["prompts"][i, width - int(lengths[i]) :].tolist())
        samples.append(
            Sample(
                input=prompts[uid],
                output=outcome.texts[i],
                score=None if unscored[i] else float(outcome.scores[i]),
                gts=columns["ground_truth"][i],
                uid=str(uid),
                data_source=str(columns["data_source"][i]),
                stop_reason=str(columns["stop_reason"][i]),
                turns=int(columns["num_turns"][i]) if "num_turns" in columns else 1,
                policy_version=int(tensors["policy_version"][i]),
                extra={name: values[i] for name, values in (outcome.extra | episodes).items()},
            )
        )
    return samples


def number_samples(batch: DataProto, start: int) -> None:
    """Say in each row which of the step's samples it is, so that it is found again after rows have left the batch."""
    batch.put(sample_number=torch.arange(start, start + len(batch)))


def add_tokens(samples: Sequence[Sample], batch: DataProto, tokenizer: Any, limit: int) -> list[Sample]:
    """The samples, the first `limit` of those that were trained on with their tokens and what became of them."""
    tensors, detailed = batch.tensors(), list(samples)
    width = tensors["responses"].shape[1]
    for row in range(min(limit, len(batch))):
        number = int(tensors["sample_number"][row])
        length = int(tensors["attention_mask"][row, -width:].sum()) if width else 0
        columns: dict[str, list[Any]] = {
            "tokens": [tokenizer.decode([token]) for token in tensors["responses"][row, :length].tolist()],
            "log_probs": _rounded(tensors["rollout_log_probs"][row, :length]),
            "advantages": _rounded(tensors["advantages"][row, :length]),
            "response_mask": tensors["response_mask"][row, :length].tolist(),
        }
        if "old_log_probs" in tensors:
            gap = tensors["old_log_probs"][row, :length] - tensors["rollout_log_probs"][row, :length]
            columns["ratios"] = _rounded(gap.exp())
        detailed[number] = replace(samples[number], extra={**samples[number].extra, **columns})
    return detailed


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]
