"""What the device knows of every slot, so that decoding needs no word from the host.

One column per slot, and a last one that never runs, for the rows that pad a batch. The host writes a slot's columns
when its prompt enters, and the pages as they are granted; kernels move the rest on. What was drawn lies in a ring, of
which a snapshot goes to the host after each launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from podium.engines.rollout.native.blocks import BlockTables, IntArray
from podium.engines.rollout.native.gpu.advance import read_inputs, record_tokens
from podium.engines.rollout.native.gpu.rules import RuleTable
from podium.engines.rollout.native.kv import to_device
from podium.engines.rollout.native.slots import Slots
from podium.engines.rollout.request import Array

RING = 64
"""Drawn tokens a slot keeps on the device: more than are ever on their way to the host."""

_INTEGERS = ("lengths", "last_token", "written", "max_tokens", "seed", "sample", "rule", "top_k")
_FLOATS = ("temperature", "top_p", "min_p")


@dataclass(frozen=True)
class Snapshot:
    """The ring as it was when the launch before it ended, on its way to the host."""

    tokens: Tensor  # [slots, RING]
    log_probs: Tensor  # [2, slots, RING]
    arrived: torch.cuda.Event | None

    def read(self, slots: IntArray, first: IntArray, width: int) -> tuple[Array, Array, Array]:
        """Tokens, log-probs and raw log-probs [n, width]: numbers `first` to `first + width` of each slot."""
        if self.arrived is not None:
            self.arrived.synchronize()
        columns = (first[:, None] + np.arange(width)) % RING
        tokens, log_probs = self.tokens.numpy(), self.log_probs.numpy()
        return (
            tokens[slots[:, None], columns],
            log_probs[0][slots[:, None], columns],
            log_probs[1][slots[:, None], columns],
        )


class DeviceState:
    def __init__(self, num_slots: int, width: int, vocab_size: int, device: torch.device) -> None:
        """`width`: pages a sequence may have."""
        self.device, self.num_slots = device, num_slots
        self._integers = torch.zeros(len(_INTEGERS), num_slots + 1, dtype=torch.int64, device=device)
        self._floats = torch.ones(len(_FLOATS), num_slots + 1, dtype=torch.float32, device=device)
        self.integers = dict(zip(_INTEGERS, self._integers, strict=True))
        self.floats = dict(zip(_FLOATS, self._floats, strict=True))
        self.table = torch.zeros(num_slots + 1, width, dtype=torch.int32, device=device)
        self.rules = RuleTable(vocab_size, device)
        self._ring_tokens = torch.zeros(num_slots + 1, RING, dtype=torch.int64, device=device)
        self._ring_log_probs = torch.zeros(2, num_slots + 1, RING, dtype=torch.float32, device=device)

    def clear(self) -> None:
        """No slot runs, and nothing was drawn."""
        for kept in (self._integers, self._ring_tokens, self._ring_log_probs):
            kept.zero_()

    # ---- from the host

    def place(self, slots: Slots, members: IntArray, prompt_tokens: IntArray) -> None:
        """Slots [n] whose prompts have just been computed."""
        columns = [prompt_tokens, np.zeros_like(members), slots.num_written[members], slots.max_tokens[members]]
        columns += [slots.seed[members], slots.sample[members], slots.rule[members], slots.top_k[members]]
        floats = [slots.temperature[members], slots.top_p[members], slots.min_p[members]]
        index = to_device(members, self.device)
        self._integers.index_copy_(1, index, to_device(np.stack(columns), self.device))
        self._floats.index_copy_(1, index, to_device(np.stack(floats), self.device))

    def set_pages(self, tables: BlockTables, members: IntArray) -> None:
        width = int(tables.num_blocks[members].max())
        rows = to_device(tables.table[members, :width].astype(np.int32), self.device)
        self.table[:, :width].index_copy_(0, to_device(members, self.device), rows)

    # ---- on the device

    def read_inputs(self, rows: Tensor, page_size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, positions and cache places [B] of the slots `rows` [B]."""
        known = self.integers
        return read_inputs(rows, known["lengths"], known["last_token"], self.table, page_size)

    def record(self, rows: Tensor, tokens: Tensor, log_probs: Tensor, raw_log_probs: Tensor) -> None:
        known = self.integers
        record_tokens(
            tokens,
            log_probs,
            raw_log_probs,
            rows,
            known["lengths"],
            known["last_token"],
            known["written"],
            known["max_tokens"],
            known["rule"],
            self.rules.data,
            (self._ring_tokens, self._ring_log_probs[0], self._ring_log_probs[1]),
        )

    def snapshot(self) -> Snapshot:
        if self.device.type != "cuda":
            return Snapshot(self._ring_tokens.clone(), self._ring_log_probs.clone(), None)
        tokens, log_probs = (
            torch.empty(ring.shape, dtype=ring.dtype, pin_memory=True).copy_(ring, non_blocking=True)
            for ring in (self._ring_tokens, self._ring_log_probs)
        )
        arrived = torch.cuda.Event()
        arrived.record()
        return Snapshot(tokens, log_probs, arrived)
