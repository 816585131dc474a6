"""What a train engine is: scoring and updating one model on this rank's rows.

Every method that computes is collective over the engine's data-parallel ranks: all ranks call it, each with its own
rows, and a rank may have none. Results never depend on how rows are spread over ranks or cut into micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from podium.engines.train.culprits import Culprit
from podium.metric import Metrics
from podium.protocol import DataProto


@dataclass(frozen=True)
class ModelOutputs:
    """What the model says about the response tokens of a micro-batch, with gradients, zero where there is no token.

    A policy fills the first three (the third only when asked), a value model the last.
    """

    log_probs: Tensor | None = None  # [b, R]
    entropy: Tensor | None = None  # [b, R]
    sum_pi_squared: Tensor | None = None  # [b, R]
    values: Tensor | None = None  # [b, R]


LossFn = Callable[[ModelOutputs, TensorDict], tuple[Tensor, Metrics]]
"""A loss as a SUM over the micro-batch's tokens (or sequences), and its metrics. The engine divides."""


class TrainEngine(Protocol):
    sharded: bool
    adapted: bool
    """The module has LoRA adapters: its own parameters are not yet the policy's weights."""
    step_count: int
    """Optimizer steps taken; a skipped step is not counted."""
    culprit: Culprit | None
    """What was not finite on this rank when a step was last skipped."""

    @property
    def module(self) -> nn.Module:
        """The causal LM or value model; its parameters are shards when `sharded`."""

    def log_probs(
        self, batch: DataProto, *, temperature: float, with_entropy: bool = False, with_sum_pi_squared: bool = False
    ) -> dict[str, Tensor]:
        """`log_probs`, and on request `entropys` and `sum_pi_squared`: [B, R] float32, zero where there is no token."""

    def values(self, batch: DataProto) -> Tensor:
        """The value before each response token is written, [B, R] float32."""

    def scores(self, batch: DataProto) -> Tensor:
        """A reward model's score of each row: its value at the row's last token, [B] float32."""

    def mean_hidden(self, batch: DataProto) -> Tensor:
        """The mean of the last hidden states over the tokens the model wrote, [B, H] float32."""

    def update(
        self,
        batch: DataProto,
        loss_fn: LossFn,
        count: float,
        *,
        temperature: float = 1.0,
        with_entropy: bool = True,
        with_sum_pi_squared: bool = False,
    ) -> Metrics:
        """One optimizer step over all rows. `count`: this rank's share of what the loss is divided by."""

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Full tensors under their Hugging Face names, adapters merged, one at a time; all ranks iterate."""

    def adapter(self) -> Iterator[tuple[str, Tensor]]:
        """The adapter alone, named as peft does; nothing without one. All ranks iterate."""

    def save(self, folder: Path) -> None:
        """Model, optimizer and schedule; can be loaded by any number of ranks."""

    def load(self, folder: Path) -> None: ...

    def offload(self, keep_weights: bool = False) -> None:
        """The engine rests: make room on the device, as far as the configuration allows, until its next use."""

    def onload(self) -> None: ...

    def reference(self) -> AbstractContextManager[None]:
        """Inside, the engine computes with the weights the run began from (adapters off)."""
