"""Two ends of the way from a trainer to rollout workers in a pool of their own.

The trainer's rank 0 offers a meeting place; then every process joins the channel at the same time. A publish is one
call on each side, started together by the controller. What is said on the way is engines/rollout/remote.py.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

from podium.engines.rollout.channels import GroupChannel

Meeting = tuple[str, int]


class Offer:
    """The trainer's rank 0: a store at an address of this node, kept for as long as the channel is used."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.store: Any = TCPStore(address, 0, is_master=True, wait_for_workers=False)

    @property
    def meeting(self) -> Meeting:
        return self.address, self.store.port

    def join(self, size: int, device: torch.device, timeout_s: float) -> GroupChannel:
        return GroupChannel(self.store, 0, size, device, timeout_s)


def join_channel(meeting: Meeting, rank: int, size: int, device: torch.device, timeout_s: float) -> GroupChannel:
    """A rollout worker's end; rank 0 is the trainer."""
    address, port = meeting
    store: Any = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout_s))
    return GroupChannel(store, rank, size, device, timeout_s)
