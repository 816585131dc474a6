"""Workers that need no torch, and so start quickly. Ray workers import this file too."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from podium.single_controller.dispatch import Dispatch, register
from podium.single_controller.worker import Worker


def wait_for(file: str) -> None:
    """Until somebody makes the file; for ever where there is none."""
    while not (file and Path(file).exists()):
        time.sleep(0.02)


class Light(Worker):
    def __init__(self, fail_on_rank: int | None = None, never_ready: bool = False) -> None:
        if self.rank == fail_on_rank:
            raise RuntimeError(f"no weights for rank {self.rank}")
        if never_ready:
            wait_for("")

    @register(Dispatch.ONE_TO_ALL)
    def where(self, *args: Any, **kwargs: Any) -> tuple[str, int, int, int, tuple[Any, ...], dict[str, Any]]:
        return self.role, self.rank, self.world_size, os.getpid(), args, kwargs

    @register(Dispatch.ONE_TO_ALL)
    def environment(self, *names: str) -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in names}

    @register(Dispatch.RANK_ZERO)
    def ask_first(self, question: str) -> str:
        """Only rank 0 answers."""
        return f"rank {self.rank}: {question}"

    @register(Dispatch.ONE_TO_ALL)
    def say(self, text: str) -> None:
        print(text)
        logging.getLogger("podium.toys").info("logged %s", text)
        os.write(2, f"raw {text}\n".encode())

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def nap(self, rank: int, until: str = "") -> int:
        """One rank sleeps until the file is there, the others answer; -1: all sleep."""
        print(f"rank {self.rank} goes to sleep", file=sys.stderr, flush=True)
        if rank in (self.rank, -1):
            wait_for(until)
        return self.rank

    @register(Dispatch.ONE_TO_ALL)
    def raise_on(self, rank: int, others_wait_for: str | None = None) -> None:
        if self.rank == rank:
            {}["the missing key"]
        if others_wait_for is not None:
            wait_for(others_wait_for)

    def not_registered(self, value: int) -> int:
        return value + self.rank


class Peer(Worker):
    """Talks to its peers."""

    def __init__(self) -> None:
        self.setup_distributed(timeout_s=600)

    @register(Dispatch.ONE_TO_ALL)
    def sum_of_ranks(self) -> float:
        import torch

        value = torch.tensor([self.rank + 1.0])
        if self.world_size > 1:
            torch.distributed.all_reduce(value)
        return float(value)

    @register(Dispatch.ONE_TO_ALL)
    def is_initialized(self) -> bool:
        import torch

        self.setup_distributed()
        return torch.distributed.is_initialized()

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def wait_for_rank_one(self, note: str) -> float:
        """Rank 0 hangs in a collective that rank 1 never reaches; each makes a file when it gets here."""
        Path(f"{note}{self.rank}").touch()
        if self.rank == 1:
            wait_for("")
        return self.sum_of_ranks()
