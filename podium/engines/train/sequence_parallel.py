"""Sequence parallelism: several ranks work on the same rows, each on its stretch of the packed tokens.

`size` neighbouring ranks are one group. The group takes the rows of all its ranks together, so that nobody above the
engine needs to know; each rank embeds, projects and scores its own stretch, attention exchanges heads for tokens
(models/ulysses.py), and the numbers per response token are added up over the group. The gradient of a rank is its
stretch's part of the whole, as with data parallelism. With `size` 1 nothing is done.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tensordict import TensorDict
from torch import Tensor
from transformers import PreTrainedConfig

from podium.engines.train.packing import Pack
from podium.engines.train.sharding import Ranks
from podium.engines.train.units import UNIT
from podium.errors import ConfigError
from podium.models.ulysses import UlyssesAttention
from podium.models.vision import is_vision_model
from podium.protocol import DataProto


class SequenceParallel:
    def __init__(self, size: int, ranks: Ranks, config: PreTrainedConfig) -> None:
        if size < 1 or ranks.size % size:
            raise ConfigError(
                f"ulysses_sequence_parallel_size is {size} with {ranks.size} ranks; it must divide their number."
            )
        if size > 1 and is_vision_model(config):
            raise ConfigError("ulysses_sequence_parallel_size above 1 does not take models with images; set it to 1.")
        heads = config.get_text_config().num_attention_heads
        if heads % size:
            raise ConfigError(
                f"ulysses_sequence_parallel_size is {size}, but the model has {heads} attention heads; each rank takes "
                "an equal share of them, so the size must divide their number."
            )
        self.size, self.rank = size, ranks.rank % size
        self.group: dist.ProcessGroup | None = None
        if size > 1:
            for start in range(0, ranks.size, size):  # every rank takes part in making every group
                group = dist.new_group(list(range(start, start + size)))
                if start <= ranks.rank < start + size:
                    self.group = group

    @property
    def budgets(self) -> int:
        """Micro-batch budgets that a group fills together: each rank takes its own stretch."""
        return self.size

    @property
    def speaks(self) -> bool:
        """One rank of a group tells what all of its ranks found."""
        return self.rank == 0

    def gather(self, rows: TensorDict) -> tuple[TensorDict, slice]:
        """The rows of the whole group, and where this rank's are among them."""
        if self.group is None:
            return rows, slice(0, len(rows))
        mine = {str(key): value.cpu() for key, value in rows.items()} if len(rows) else {}
        parts: list[dict[str, Tensor]] = [{} for _ in range(self.size)]
        dist.all_gather_object(parts, mine, group=self.group)
        for number, part in enumerate(parts):
            if UNIT in part:  # rows that stay together do so under one number, which another rank may have used
                part[UNIT] = part[UNIT] * self.size + number
        filled = [DataProto.from_dict(tensors=part) for part in parts if part]
        counts = [len(next(iter(part.values()))) if part else 0 for part in parts]
        start = sum(counts[: self.rank])
        own = slice(start, start + counts[self.rank])
        if not filled:
            return rows, own
        everyone = DataProto.concat(filled).batch
        assert everyone is not None
        return everyone.to(rows.device or "cpu"), own

    def split(self, pack: Pack) -> Pack:
        """This rank's stretch of a pack, as long as the others' by padding at the end."""
        if self.group is None:
            return pack
        tokens = pack.input_ids.shape[1]
        own = -(-tokens // self.size)
        start = self.rank * own
        ids, positions = (
            F.pad(x, (0, own * self.size - tokens))[:, start : start + own] for x in (pack.input_ids, pack.position_ids)
        )
        here = (pack.sources >= start) & (pack.sources < start + own)
        attention = UlyssesAttention(pack.attention, tokens, self.size, self.group)
        told = (pack.sources[here] - start, pack.labels[here], pack.slots[here])
        return Pack(ids, positions, attention, *told, pack.shape)

    def add_up(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Numbers that each rank has for its own stretch and zero elsewhere, made whole; differentiable."""
        if self.group is None:
            return outputs
        return {name: _AddUp.apply(part, self.group) for name, part in outputs.items()}


class _AddUp(torch.autograd.Function):
    """Every rank of the group computes the same loss from the sum, and takes its gradient for its own part."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        whole = part.clone()
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None
