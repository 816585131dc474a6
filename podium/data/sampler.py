"""ResumableSampler: which rows make the next batch, exactly resumable from three integers.

The order of an epoch is a permutation drawn from (seed, epoch), so (seed, epoch, cursor) says all there is to say: no
list of indices is ever saved. A batch never mixes epochs; the rows left over at an epoch's end wait for the next one.
"""

from __future__ import annotations

import numpy as np

from podium.errors import ConfigError, DataError


class ResumableSampler:
    def __init__(self, size: int, batch_size: int, seed: int, shuffle: bool = True) -> None:
        if batch_size < 1:
            raise ConfigError(f"data.train_batch_size={batch_size} must be at least 1")
        if size < batch_size:
            raise DataError(
                f"there are {size} training rows, fewer than data.train_batch_size={batch_size}; lower it or add rows"
            )
        self.size, self.batch_size, self.seed, self.shuffle = size, batch_size, seed, shuffle
        self.epoch = 0
        self.cursor = 0  # batches of this epoch that were drawn

    @property
    def batches_per_epoch(self) -> int:
        return self.size // self.batch_size

    def next_batch(self) -> list[int]:
        """The rows of the next batch; `epoch` is then the epoch they belong to."""
        if self.cursor == self.batches_per_epoch:
            self.epoch, self.cursor = self.epoch + 1, 0
        start = self.cursor * self.batch_size
        self.cursor += 1
        return [int(row) for row in self._order(self.epoch)[start : start + self.batch_size]]

    def state_dict(self) -> dict[str, int]:
        return {"seed": self.seed, "epoch": self.epoch, "cursor": self.cursor}

    def load_state_dict(self, state: dict[str, int]) -> None:
        cursor = int(state["cursor"])
        if not 0 <= cursor <= self.batches_per_epoch:
            raise DataError(
                f"the checkpoint stands at batch {cursor} of its epoch, but these {self.size} rows make "
                f"{self.batches_per_epoch} batches of {self.batch_size}; resume with the data and the batch size it had"
            )
        self.seed, self.epoch, self.cursor = int(state["seed"]), int(state["epoch"]), cursor

    def _order(self, epoch: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if not self.shuffle:
            return np.arange(self.size)
        if getattr(self, "_cached", (None, None))[0] != (self.seed, epoch):
            self._cached = ((self.seed, epoch), np.random.default_rng([self.seed, epoch]).permutation(self.size))
        return self._cached[1]
