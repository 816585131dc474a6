"""Numbers about a batch and a step, under the names of verl.

Everything here is computed by the controller from a finished batch, so plain floats are enough; numbers that must be
merged over ranks are `Metric`s and come from the workers. Padding and observation tokens never enter a statistic.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping

import torch
from torch import Tensor

from podium.engines.rollout.base import StopReason
from podium.metric import reduce_metrics
from podium.protocol import DataProto

__all__ = [
    "compute_data_metrics",
    "compute_throughout_metrics",
    "compute_timing_metrics",
    "memory_metrics",
    "reduce_metrics",
]

_TOKENS_OF_PHASE = {
    "gen": "response",
    "reward": "response",
    "old_log_prob": "all",
    "ref": "all",
    "values": "all",
    "adv": "all",
    "update_critic": "all",
    "update_actor": "all",
}


def _compute_response_info(batch: DataProto) -> dict[str, Tensor]:
    """Real tokens per row: prompt, response (observations included), and those the model wrote."""
    tensors = batch.tensors()
    response_width = tensors["responses"].shape[1]
    mask = tensors["attention_mask"]
    return {
        "response_mask": tensors["response_mask"],
        "prompt_length": mask[:, : mask.shape[1] - response_width].sum(-1).float(),
        "response_length": mask[:, mask.shape[1] - response_width :].sum(-1).float(),
    }


def _spread(name: str, values: Tensor) -> dict[str, float]:
    if values.numel() == 0:
        return {}
    values = values.float()
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def compute_data_metrics(batch: DataProto, use_critic: bool, max_response_length: int) -> dict[str, float]:
    """Scores, rewards, advantages, returns, values and lengths of a step's batch."""
    tensors, info = batch.tensors(), _compute_response_info(batch)
    mask = info["response_mask"].bool()
    length = info["response_length"]
    metrics = (
        _spread("critic/score", tensors["token_level_scores"].sum(-1))
        | _spread("critic/rewards", tensors["token_level_rewards"].sum(-1))
        | _spread("critic/advantages", tensors["advantages"][mask])
        | _spread("critic/returns", tensors["returns"][mask])
        | _spread("response_length", length)
        | _spread("prompt_length", info["prompt_length"])
    )
    if len(batch):
        if "info_mask" in tensors:  # the limit is a turn's
            cut = [reason == StopReason.LENGTH for reason in batch.non_tensor_batch["stop_reason"]]
            metrics["response_length/clip_ratio"] = sum(cut) / len(cut)
        else:
            metrics["response_length/clip_ratio"] = float((length >= max_response_length).float().mean())
    if use_critic and mask.any():
        values, returns = tensors["values"][mask], tensors["returns"][mask]
        metrics |= _spread("critic/values", values)
        residual, total = (returns - values).var(unbiased=False), returns.var(unbiased=False)
        metrics["critic/vf_explained_var"] = float(1 - residual / (total + 1e-8))
    if "num_turns" in batch.non_tensor_batch:
        turns = torch.tensor([float(n) for n in batch.non_tensor_batch["num_turns"]])
        metrics |= _spread("num_turns", turns)
    return metrics


def compute_timing_metrics(batch: DataProto, timing_raw: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each phase, and milliseconds per token it worked on."""
    info = _compute_response_info(batch)
    written = float(info["response_length"].sum())
    tokens = {"response": written, "all": written + float(info["prompt_length"].sum())}
    metrics = {f"timing_s/{name}": seconds for name, seconds in timing_raw.items()}
    for name, kind in _TOKENS_OF_PHASE.items():
        if name in timing_raw and tokens[kind]:
            metrics[f"timing_per_token_ms/{name}"] = timing_raw[name] * 1000 / tokens[kind]
    return metrics


def compute_throughout_metrics(batch: DataProto, timing_raw: Mapping[str, float], n_gpus: int) -> dict[str, float]:
    """Tokens of the step, and tokens per second and device. (The name is verl's.)"""
    info = _compute_response_info(batch)
    tokens = float(info["response_length"].sum() + info["prompt_length"].sum())
    return {
        "perf/total_num_tokens": tokens,
        "perf/time_per_step": timing_raw["step"],
        "perf/throughput": tokens / (timing_raw["step"] * n_gpus),
    }


def memory_metrics() -> dict[str, float]:
    """Peak memory of this process and of the device it drives."""
    unit = 1 if sys.platform == "darwin" else 1024
    metrics = {"perf/cpu_memory_used_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30}
    if torch.cuda.is_available():
        metrics["perf/max_memory_allocated_gb"] = torch.cuda.max_memory_allocated() / 2**30
    return metrics
