"""Ways between one trainer and some rollout processes: a process group, or a store where nothing better is possible.

The trainer's end says something to all and hears one answer from each; the other end listens and replies. A message is
a small JSON object, some with a flat tensor of bytes behind it. Every wait has a limit, after which a PublishError says
who was silent. What is said is remote.py's matter.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from podium.errors import PublishError

Message = dict[str, Any]
PIECE_BYTES = 4 << 20
"""Of one value in a store: torch's TCPStore closes the connection at 8 MiB."""


class Channel(ABC):
    """Rank 0 is the trainer; ranks 1 to `size` - 1 are rollout processes. `device`: where bytes are sent and wanted."""

    note: str = ""
    """What whoever waits for it should know of this way."""

    def __init__(self, rank: int, size: int, device: torch.device, timeout_s: float) -> None:
        self.rank, self.size, self.device, self.timeout_s = rank, size, device, timeout_s

    def say(self, message: Message, data: Tensor | None = None) -> None:
        """Trainer: to every rollout process."""
        start = time.monotonic()
        try:
            self._say(message | ({} if data is None else {"bytes": data.numel()}), data)
        except (RuntimeError, ValueError) as error:
            raise self._silence("some rollout process did not take", message["kind"], start, error) from error

    def hear(self, kind: str) -> list[Message]:
        """Trainer: the answer of each rollout process, in the order of their ranks."""
        answers = []
        for rank in range(1, self.size):
            start = time.monotonic()
            try:
                answers.append(self._hear(rank))
            except (RuntimeError, ValueError) as error:
                raise self._silence(f"rollout process {rank} did not answer", kind, start, error) from error
        return answers

    def listen(self) -> tuple[Message, Tensor | None]:
        """Rollout process: the next thing the trainer says."""
        start = time.monotonic()
        try:
            return self._listen()
        except (RuntimeError, ValueError) as error:
            raise self._silence("the trainer said nothing", "next message", start, error) from error

    def _silence(self, who: str, what: str, start: float, error: Exception) -> PublishError:
        passed_s = time.monotonic() - start
        if passed_s < 0.9 * self.timeout_s:  # nobody waited for the limit
            when = f"and the way between them broke after {passed_s:.1f} s"
        else:
            when = f"within {self.timeout_s:g} s"
        return PublishError(
            f"Publishing by broadcast: {who} ({what}) {when}. Look at the other side's log; it "
            f"may have died or be in another phase. ({type(error).__name__}: {str(error)[:200]})"
        )

    def reply(self, message: Message) -> None:
        """Rollout process: answer the trainer."""
        start = time.monotonic()
        try:
            self._reply(message)
        except (RuntimeError, ValueError) as error:
            raise self._silence("the trainer did not take", "answer", start, error) from error

    @abstractmethod
    def _say(self, message: Message, data: Tensor | None) -> None: ...

    @abstractmethod
    def _hear(self, rank: int) -> Message: ...

    @abstractmethod
    def _listen(self) -> tuple[Message, Tensor | None]: ...

    @abstractmethod
    def _reply(self, message: Message) -> None: ...


class GroupChannel(Channel):
    """A process group of its own, beside any other the processes are in: gloo for words, NCCL for a GPU's bytes.

    They meet in `store`, a torch.distributed store that all of them reach, and have `form_limit_s` to connect.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        device: torch.device | str = "cpu",
        timeout_s: float = 300.0,
        form_limit_s: float | None = None,
    ) -> None:
        super().__init__(rank, size, torch.device(device), timeout_s)
        limit = timedelta(seconds=timeout_s)
        forming = limit if form_limit_s is None else min(limit, timedelta(seconds=form_limit_s))
        self._words: Any = dist.ProcessGroupGloo(PrefixStore("words", store), rank, size, forming)
        self._bytes: Any = self._words
        if self.device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = limit
            self._bytes = dist.ProcessGroupNCCL(PrefixStore("bytes", store), rank, size, options)
        self._greet(limit)

    def _greet(self, limit: timedelta) -> None:
        """Bytes come through; from now on every wait has the same limit."""
        self._words.broadcast(torch.zeros(1), 0).wait()
        self._bytes.broadcast(torch.zeros(1, device=self.device), 0).wait()  # NCCL connects with its first bytes
        self._words._set_default_timeout(limit)

    def _say(self, message: Message, data: Tensor | None) -> None:
        words = _encode(message)
        self._words.broadcast(torch.tensor([words.numel()]), 0).wait()
        self._words.broadcast(words, 0).wait()
        if data is not None:
            self._bytes.broadcast(data.to(self.device), 0).wait()

    def _listen(self) -> tuple[Message, Tensor | None]:
        length = torch.zeros(1, dtype=torch.int64)
        self._words.broadcast(length, 0).wait()
        words = torch.empty(int(length), dtype=torch.uint8)
        self._words.broadcast(words, 0).wait()
        message = _decode(words)
        if "bytes" not in message:
            return message, None
        data = torch.empty(message["bytes"], dtype=torch.uint8, device=self.device)
        self._bytes.broadcast(data, 0).wait()
        return message, data

    def _reply(self, message: Message) -> None:
        words = _encode(message)
        self._words.send([torch.tensor([words.numel()])], 0, 0).wait()
        self._words.send([words], 0, 0).wait()

    def _hear(self, rank: int) -> Message:
        length = torch.zeros(1, dtype=torch.int64)
        self._words.recv([length], rank, 0).wait()
        words = torch.empty(int(length), dtype=torch.uint8)
        self._words.recv([words], rank, 0).wait()
        return _decode(words)


class Store(Protocol):
    """The part of an object store (torch's TCPStore and FileStore have it) that a StoreChannel needs."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def wait(self, keys: list[str], timeout: timedelta) -> None: ...

    def delete_key(self, key: str) -> bool: ...


class StoreChannel(Channel):
    """Through a store that all sides reach: slower than a process group, and needs no connection between them.

    Until all have answered, the store holds what was said: of a publish, all of the weights.
    """

    def __init__(
        self, store: Store, rank: int, size: int, device: torch.device | str = "cpu", timeout_s: float = 300.0
    ) -> None:
        super().__init__(rank, size, torch.device(device), timeout_s)
        self.store = store
        self._said = 0
        self._answered = [0] * size
        self._unread: list[str] = []

    def _say(self, message: Message, data: Tensor | None) -> None:
        self._said += 1
        self._unread += self._put(f"said/{self._said}/words", _encode(message))
        if data is not None:
            self._unread += self._put(f"said/{self._said}/bytes", data.cpu())

    def _listen(self) -> tuple[Message, Tensor | None]:
        self._said += 1
        message = _decode(self._take(f"said/{self._said}/words")[0])
        if "bytes" not in message:
            return message, None
        return message, self._take(f"said/{self._said}/bytes")[0].to(self.device)

    def _reply(self, message: Message) -> None:
        self._answered[self.rank] += 1
        self._put(f"answered/{self.rank}/{self._answered[self.rank]}", _encode(message))

    def _hear(self, rank: int) -> Message:
        self._answered[rank] += 1
        words, keys = self._take(f"answered/{rank}/{self._answered[rank]}")
        if rank == self.size - 1:  # everybody has read what was said before their answer
            keys += self._unread
            self._unread = []
        for key in keys:
            self.store.delete_key(key)
        return _decode(words)

    def _put(self, name: str, data: Tensor) -> list[str]:
        """Lay bytes down in pieces, and then how many there are; the keys."""
        pieces = data.split(PIECE_BYTES) if data.numel() else ()
        values = {f"{name}/{number}": piece.numpy().tobytes() for number, piece in enumerate(pieces)}
        for key, value in (values | {name: str(len(values)).encode()}).items():
            self.store.set(key, value)
        return [name, *values]

    def _take(self, name: str) -> tuple[Tensor, list[str]]:
        self.store.wait([name], timedelta(seconds=self.timeout_s))
        keys = [f"{name}/{number}" for number in range(int(self.store.get(name)))]
        data = b"".join(self.store.get(key) for key in keys)
        return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy()), [name, *keys]


def _encode(message: Message) -> Tensor:
    return torch.from_numpy(np.frombuffer(json.dumps(message).encode(), dtype=np.uint8).copy())


def _decode(words: Tensor) -> Message:
    message: Message = json.loads(words.numpy().tobytes())
    return message
