"""Which rows make the next batch, resumable from three integers.

The order of an epoch is a function of (seed, epoch) alone, and `cursor` says how many rows of it were handed out, so
a resumed run sees exactly the batches the unbroken one would have seen. A batch never mixes epochs: rows at the end of
an epoch that do not fill a batch are left out of that epoch (`num_dropped`); with shuffling, others the next time.
The sampler hands out row numbers and reads no data.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from podium.errors import ConfigError, DataError


class ResumableSampler:
    """Endless batches of row numbers: `for rows in sampler.epoch_batches()` per epoch, or `next_batch()`."""

    def __init__(self, size: int, batch_size: int, seed: int = 0, shuffle: bool = True) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch size {batch_size} must be at least 1")
        if size < batch_size:
            fix = "lower data.train_batch_size or add rows"
            raise ConfigError(f"{size} rows do not fill one batch of {batch_size}; {fix}")
        self.size, self.batch_size, self.seed, self.shuffle = size, batch_size, seed, shuffle
        self.epoch, self.cursor = 0, 0
        self._order_of: tuple[int, int] | None = None  # the (seed, epoch) of `_order`
        self._order: NDArray[np.int64] = np.arange(size)

    def __len__(self) -> int:
        """Batches per epoch."""
        return self.size // self.batch_size

    @property
    def num_dropped(self) -> int:
        """Rows each epoch leaves out because they do not fill a batch."""
        return self.size % self.batch_size

    def next_batch(self) -> list[int]:
        """The next `batch_size` row numbers; goes on to the next epoch when this one has no full batch left."""
        if self.cursor + self.batch_size > self.size:
            self.epoch, self.cursor = self.epoch + 1, 0
        rows = self._permutation()[self.cursor : self.cursor + self.batch_size]
        self.cursor += self.batch_size
        return [int(row) for row in rows]

    def epoch_batches(self) -> Iterator[list[int]]:
        """What is left of the current epoch; then the sampler stands at the start of the next one."""
        while self.cursor + self.batch_size <= self.size:
            yield self.next_batch()
        self.epoch, self.cursor = self.epoch + 1, 0

    __iter__ = epoch_batches

    def state_dict(self) -> dict[str, int]:
        """Everything needed to go on from here. Taken right after a batch, that batch counts as handed out."""
        return {"seed": self.seed, "epoch": self.epoch, "cursor": self.cursor}

    def load_state_dict(self, state: dict[str, int]) -> None:
        seed, epoch, cursor = (int(state[key]) for key in ("seed", "epoch", "cursor"))
        if epoch < 0 or not 0 <= cursor <= self.size:
            raise DataError(
                f"sampler state epoch={epoch} cursor={cursor} does not fit {self.size} rows; "
                f"resume with the data the run was started with"
            )
        self.seed, self.epoch, self.cursor = seed, epoch, cursor

    def _permutation(self) -> NDArray[np.int64]:
        if self.shuffle and self._order_of != (self.seed, self.epoch):
            self._order = permutation(self.size, self.seed, self.epoch)
            self._order_of = (self.seed, self.epoch)
        return self._order


def permutation(size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Row numbers sorted by a hash of (seed, epoch, row): the same on every machine and with every numpy version."""
    start = _mix(_mix(np.array([seed % 2**64], dtype=np.uint64)) + np.uint64(epoch))
    keys = _mix(start + np.arange(size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return np.argsort(keys, kind="stable")


def hash_words(seed: int, positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A 64-bit word per position, the same on every machine."""
    start = _mix(np.array([seed % 2**64], dtype=np.uint64))
    return _mix(start + positions * np.uint64(0x9E3779B97F4A7C15))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64: a bijection of 64-bit words in which every input bit moves every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
