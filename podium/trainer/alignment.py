"""Representation alignment in a step: the ground truth as if it were the response, and the bonus for pointing there.

The arithmetic is in podium.algorithms.alignment; here the ground truths become a batch of their own, the reference
model reads both, and the bonus is added to the rewards. On a step whose policy is certain enough nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from podium.algorithms import (
    alignment_active,
    masked_mean,
    repr_align_bonus,
    repr_align_inactive,
    schedule_weight,
)
from podium.config.schema import Config
from podium.metric import Metric
from podium.protocol import DataProto, compute_position_ids


def align_representations(
    batch: DataProto,
    workers: Any,
    tokenizer: Any,
    config: Config,
    step: int,
    total_steps: int,
    say: Callable[[str], None],
) -> dict[str, float | Metric]:
    """Add the bonus to `token_level_rewards` when the batch's mean entropy is above the threshold.

    `say` tells the user when no row of the step has a ground truth to align with.
    """
    settings = config.algorithm.repr_align.ref_alignment
    if not settings.enable:
        return {}
    tensors = batch.tensors()
    weight = schedule_weight(
        settings.schedule, step, total_steps, settings.max_weight, settings.warmup_ratio, settings.steps
    )
    mask = tensors["response_mask"]
    if not alignment_active(float(masked_mean(tensors["entropys"], mask)), settings.entropy_high_threshold):
        return dict(repr_align_inactive(weight))
    truths, has_truth = truth_batch(batch, tokenizer, config.data.max_response_length)
    if len(batch) and not has_truth.any():
        kind = type(batch.non_tensor_batch["ground_truth"][0]).__name__
        say(
            "algorithm.repr_align has no effect: no row of the step has a ground truth that is a text, a number or "
            f"{{'target': [texts]}}; the first row's is of type {kind}. Set algorithm.repr_align.enable=false, or give "
            "the rows a reward_model.ground_truth"
        )
        return {**repr_align_inactive(weight), "repr_align/skipped": Metric.sum(len(batch))}
    bonus, metrics = repr_align_bonus(
        workers.compute_mean_hidden(batch).tensors()["mean_hidden"],
        workers.compute_mean_hidden(truths).tensors()["mean_hidden"],
        mask,
        has_truth,
        weight,
    )
    batch.put(token_level_rewards=tensors["token_level_rewards"] + bonus)
    return dict(metrics)


def truth_text(truth: Any) -> str:
    """A ground truth as text: its first target, a number as written; empty where it has none."""
    if isinstance(truth, dict):
        truth = truth.get("target")
    if isinstance(truth, list | tuple | np.ndarray):
        truth = truth[0] if len(truth) else None
    if isinstance(truth, str):
        return truth
    is_number = isinstance(truth, int | float | np.number) and not isinstance(truth, bool)
    return str(truth) if is_number else ""


def truth_batch(batch: DataProto, tokenizer: Any, max_length: int) -> tuple[DataProto, torch.Tensor]:
    """The same prompts with the ground truth's tokens as responses, and which rows have such a text."""
    tensors = batch.tensors()
    texts = [truth_text(truth) for truth in batch.non_tensor_batch["ground_truth"]]
    ids = [tokenizer.encode(text, add_special_tokens=False)[:max_length] for text in texts]
    has_truth = torch.tensor([len(row) > 0 for row in ids])
    width = max(1, max(len(row) for row in ids))
    pad = tokenizer.pad_token_id
    responses = torch.tensor([[*(row or [pad]), *[pad] * (width - max(len(row), 1))] for row in ids])
    lengths = torch.tensor([max(len(row), 1) for row in ids])
    response_mask = (torch.arange(width)[None] < lengths[:, None]).long()
    prompts = tensors["prompts"]
    attention_mask = torch.cat([tensors["attention_mask"][:, : prompts.shape[1]].long(), response_mask], dim=1)
    truths = DataProto.from_dict(
        {
            "prompts": prompts,
            "responses": responses,
            "input_ids": torch.cat([prompts, responses], dim=1),
            "attention_mask": attention_mask,
            "position_ids": compute_position_ids(attention_mask),
            "response_mask": response_mask,
        },
        meta_info={"dp_partition": batch.meta_info["dp_partition"]},
    )
    return truths, has_truth
