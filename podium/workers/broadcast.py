"""Two ends of the way from a trainer to rollout workers in a pool of their own.

The trainer's rank 0 offers a meeting place; then every process joins the channel at the same time. They form a process
group, or, where one of them cannot, all of them use the meeting place's store instead. A publish is one call on each
side, started together by the controller. What is said on the way is engines/rollout/remote.py.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from podium.config.schema import Config
from podium.engines.rollout.channels import Channel, GroupChannel, StoreChannel

log = logging.getLogger(__name__)

Meeting = tuple[str, int]
FORM_LIMIT_S = 120.0
"""For connecting to each other, once all are there."""


class Offer:
    """The trainer's rank 0: a store at an address of this node, kept for as long as the channel is used."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.store: Any = TCPStore(address, 0, is_master=True, wait_for_workers=False)

    @property
    def meeting(self) -> Meeting:
        return self.address, self.store.port

    def join(self, size: int, device: torch.device, timeout_s: float) -> Channel:
        return meet(self.store, 0, size, device, timeout_s)


def join_channel(meeting: Meeting, rank: int, size: int, device: torch.device, timeout_s: float) -> Channel:
    """A rollout worker's end; rank 0 is the trainer."""
    address, port = meeting
    store: Any = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout_s))
    return meet(store, rank, size, device, timeout_s)


def meet(store: Any, rank: int, size: int, device: torch.device, timeout_s: float) -> Channel:
    """A process group if every end could form it, else the store."""
    _tell_all(store, "here", rank, size, "", timeout_s)
    trouble, channel = "", None
    try:
        channel = GroupChannel(store, rank, size, device, timeout_s, FORM_LIMIT_S)
    except (RuntimeError, ValueError) as error:
        order = int(store.add("troubles", 1))  # whoever fails makes the others fail later, and of another cause
        trouble = f"{order:06d} {type(error).__name__}: {str(error).splitlines()[0][:200]}"
    troubles = _tell_all(store, "formed", rank, size, trouble, timeout_s)
    if channel is not None and not any(troubles):
        return channel
    text, first = min((text, each) for each, text in enumerate(troubles) if text)
    who = "the trainer" if first == 0 else f"rollout worker {first - 1}"
    fallback = StoreChannel(PrefixStore("channel", store), rank, size, device, timeout_s)
    fallback.note = f"weights go through a store, which is slow: {who} formed no process group ({text[7:]})"
    if rank == 0:
        log.warning("%s", fallback.note)
    return fallback


def _tell_all(store: Any, what: str, rank: int, size: int, text: str, timeout_s: float) -> list[str]:
    """What each end says, in the order of their ranks; waits for all of them."""
    store.set(f"{what}/{rank}", text or "-")
    keys = [f"{what}/{each}" for each in range(size)]
    store.wait(keys, timedelta(seconds=timeout_s))
    words = [store.get(key).decode() for key in keys]
    return ["" if word == "-" else word for word in words]


def all_ranks_well(well: bool) -> bool:
    """Whether each rank of the trainer is well; all of them call this."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return well
    votes = torch.tensor([int(well)])
    dist.all_reduce(votes, op=dist.ReduceOp.MIN)
    return bool(votes.item())


def num_kept_versions(config: Config) -> int:
    """Of how many versions the trainer keeps the weights for rollout workers that may be lost.

    Samples may be made as many updates ahead as `trainer.max_staleness` says; those under way then, and the newest.
    """
    staleness, rollout = config.trainer.max_staleness, config.actor_rollout_ref.rollout
    return staleness + 1 if staleness and rollout.nnodes and rollout.keep_weights and config.trainer.max_restarts else 0
