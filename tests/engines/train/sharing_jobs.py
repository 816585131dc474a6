"""Work for the ranks of any engine that shares a model among them. `make` builds the engine around a module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from rank_jobs import gathered, split
from tensordict import TensorDict
from torch import Tensor
from train_cases import make_batch, make_model, policy_loss, tokens

from podium.engines.train.base import ModelOutputs
from podium.engines.train.torch import TorchEngine
from podium.metric import Metrics

Make = Callable[[object], TorchEngine]
Spoil = Callable[[Tensor], Tensor]


def not_a_number(loss: Tensor) -> Tensor:
    return loss * float("nan")


def infinite(loss: Tensor) -> Tensor:
    """Not finite, and yet its gradients are."""
    return loss + float("inf")


def skip(
    make: Make, sizes: list[int], spoil: Spoil | None, num_spoilt: int = 1
) -> tuple[list[dict[str, Tensor]], list[Metrics]]:
    """A step, one that is spoilt on the last ranks (None: that has nothing to learn from), another step."""
    mine = not dist.is_initialized() or dist.get_rank() >= dist.get_world_size() - num_spoilt

    def spoilt(outputs: ModelOutputs, rows: TensorDict) -> tuple[Tensor, Metrics]:
        loss, metrics = policy_loss(outputs, rows)
        return spoil(loss) if mine and spoil is not None else loss, metrics

    engine, rows = make(make_model("qwen2")), split(make_batch(8), sizes)
    weights, reports = [], []
    for number in range(3):
        count = 0.0 if number == 1 and spoil is None else tokens(rows)
        reports.append(engine.update(rows, spoilt if number == 1 else policy_loss, count))
        weights.append(gathered(engine))
    assert engine.step_count == 2
    return weights, reports


def without_rows(make: Make, sizes: list[int]) -> dict[str, Tensor]:
    """Steps without a row on any rank, though something counts, before and after one with rows."""
    engine, rows = make(make_model("qwen2")), split(make_batch(8), sizes)
    nobody, count = rows.slice(0, 0), 60.0 / (dist.get_world_size() if dist.is_initialized() else 1)
    for part in (nobody, rows, nobody, rows):
        metrics = engine.update(part, policy_loss, count)
        assert metrics["skipped_updates"].result() == 0
    assert engine.step_count == 4
    return gathered(engine)


def save(make: Make, sizes: list[int], folder: Path, after: int = 2) -> dict[str, Tensor]:
    engine, rows = make(make_model("qwen2")), split(make_batch(8), sizes)
    for step in range(4):
        if step == after:
            engine.save(folder)
        engine.update(rows, policy_loss, tokens(rows))
    return gathered(engine)


def load(make: Make, sizes: list[int], folder: Path, after: int = 2, used: bool = False) -> dict[str, Tensor]:
    """Into an engine of other weights, perhaps one that has taken a step."""
    engine, rows = make(make_model("qwen2", 7)), split(make_batch(8), sizes)
    if used:
        engine.update(rows, policy_loss, tokens(rows))
    engine.load(folder)
    assert engine.step_count == after
    for _ in range(4 - after):
        engine.update(rows, policy_loss, tokens(rows))
    return gathered(engine)
