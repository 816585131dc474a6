"""Small workers that compute with batches. Ray workers import this file too."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from controller_light import Light, wait_for

from podium.metric import Metric, Metrics
from podium.protocol import DataProto
from podium.single_controller.dispatch import Dispatch, register
from podium.single_controller.worker import Worker


def make_batch(num_rows: int, width: int = 3, **meta_info: Any) -> DataProto:
    """Row i is full of i and has the id "row i"."""
    return DataProto.from_dict(
        tensors={"x": torch.arange(num_rows).float()[:, None].repeat(1, width)},
        non_tensors={"id": [f"row {i}" for i in range(num_rows)]},
        meta_info=meta_info,
    )


def token_batch(num_rows: int, prompt_width: int = 4, response_width: int = 6) -> DataProto:
    """Prompts and responses of several lengths, padded as a trainer's batch is."""
    generator = torch.Generator().manual_seed(0)
    prompt_lengths = torch.randint(1, prompt_width + 1, (num_rows,), generator=generator)
    response_lengths = torch.randint(1, response_width + 1, (num_rows,), generator=generator)
    prompt_mask = torch.arange(prompt_width)[None] >= prompt_width - prompt_lengths[:, None]
    response_mask = torch.arange(response_width)[None] < response_lengths[:, None]
    prompts = torch.randint(5, 90, (num_rows, prompt_width), generator=generator) * prompt_mask
    responses = torch.randint(5, 90, (num_rows, response_width), generator=generator) * response_mask
    mask = torch.cat([prompt_mask, response_mask], 1).long()
    return DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": responses,
            "input_ids": torch.cat([prompts, responses], 1),
            "attention_mask": mask,
            "response_mask": response_mask.long(),
        },
        non_tensors={"uid": [f"uid-{i // 2}" for i in range(num_rows)]},
        meta_info={"temperature": 0.7},
    )


class Toy(Light):
    def __init__(self, scale: int = 1) -> None:
        self.scale = scale
        self.calls = 0

    @register(Dispatch.ONE_TO_ALL)
    def num_threads(self) -> int:
        return torch.get_num_threads()

    @register(Dispatch.DP_COMPUTE_PROTO)
    def scaled(self, batch: DataProto, offset: float = 0.0) -> DataProto:
        rows = len(batch)
        return DataProto.from_dict(
            tensors={"y": batch.batch["x"] * self.scale + offset},
            non_tensors={"id": batch.non_tensor_batch["id"], "rank": [self.rank] * rows, "received": [rows] * rows},
            meta_info={"metrics": {"rows": Metric.sum(rows)}, "keys": sorted(batch.meta_info)},
        )

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def scaled_later(self, batch: DataProto, after: str | None = None) -> DataProto:
        """Not before the file is there."""
        if after is not None:
            wait_for(after)
        return self.scaled(batch)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def samples(self, batch: DataProto, n: int) -> DataProto:
        """n rows for each row, as a rollout makes them."""
        repeated = batch.repeat(n)
        repeated.non_tensor_batch["sample"] = np.array([i % n for i in range(len(repeated))], dtype=object)
        return repeated

    @register(Dispatch.DP_COMPUTE_PROTO)
    def log_probs(self, batch: DataProto) -> DataProto:
        score = batch.batch["responses"].float() * batch.batch["response_mask"] / 100
        return DataProto.from_dict({"old_log_probs": -score})

    @register(Dispatch.DP_COMPUTE_PROTO)
    def generate(self, batch: DataProto) -> DataProto:
        """Responses whose width differs from rank to rank."""
        rows, width = len(batch), 2 + self.rank
        prompts, responses = batch.batch["prompts"], torch.full((rows, width), 7)
        mask = torch.cat([(prompts != 0).long(), torch.ones(rows, width, dtype=torch.long)], 1)
        return DataProto.from_dict({"prompts": prompts, "responses": responses, "attention_mask": mask})

    @register(Dispatch.DP_COMPUTE_METRIC)
    def update(self, batch: DataProto, factor: float = 1.0) -> Metrics:
        self.calls += 1
        total = float(batch.batch["x"].sum()) * factor
        return {"loss": Metric.mean(total, batch.batch["x"].numel()), "rows": Metric.sum(len(batch))}

    @register(Dispatch.DP_COMPUTE_METRIC)
    def bad_metrics(self, batch: DataProto) -> dict[str, float]:
        return {"loss": 1.0}

    @register(Dispatch.DP_COMPUTE_PROTO)
    def adds_a_column(self, batch: DataProto) -> DataProto:
        batch.batch["z"] = batch.batch["x"] + 1
        batch.meta_info["touched"] = True
        return batch

    @register(Dispatch.ONE_TO_ALL)
    def total(self, array: np.ndarray[Any, Any]) -> float:
        return float(array.sum())


class Critic(Worker):
    def __init__(self, bias: float) -> None:
        self.bias = bias

    @register(Dispatch.DP_COMPUTE_PROTO)
    def compute_values(self, batch: DataProto) -> DataProto:
        return DataProto.from_dict(
            {"values": batch.batch["x"] + self.bias},
            {"place": [(self.role, self.rank, os.getpid())] * len(batch)},
        )


class Halves(Worker):
    """Two workers that hold one model together: both get all rows, only the leader's answer counts."""

    def __init__(self) -> None:
        self.set_data_parallel(rank=0, size=1, leader=self.rank == 0)

    @register(Dispatch.DP_COMPUTE_METRIC)
    def update(self, batch: DataProto) -> Metrics:
        return {"rows": Metric.sum(len(batch)), "leader": Metric.sum(self.rank == 0)}

    @register(Dispatch.ONE_TO_ALL)
    def change_share(self) -> None:
        self.set_data_parallel(rank=self.rank, size=2)
