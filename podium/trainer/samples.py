"""The samples of a batch as the run folder keeps them and the console shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from podium.protocol import DataProto
from podium.rewards.manager import RewardResult
from podium.tracking import Sample


def make_samples(batch: DataProto, outcome: RewardResult, decode: Callable[[Sequence[int]], str]) -> list[Sample]:
    """One Sample per row; a row without a score has None."""
    tensors, columns = batch.tensors(), batch.non_tensor_batch
    width = tensors["prompts"].shape[1]
    lengths = tensors["attention_mask"][:, :width].sum(-1).tolist()
    unscored = torch.isnan(outcome.scores).tolist()
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
                extra={name: values[i] for name, values in outcome.extra.items()},
            )
        )
    return samples
