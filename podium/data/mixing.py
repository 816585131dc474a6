"""Samplers beside the plain one: several sources by weight, or a class of the user's own.

`MixingSampler` draws each row's source by weight and that source's next row in its own shuffled order. The draws are a
function of (seed, position) alone, so three integers resume it exactly, like the plain sampler. Sources do not end
together, so there are no common epochs: `epoch` counts batches, and samples of a row that comes again differ.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from podium.config.schema import Config
from podium.data.sampler import ResumableSampler, hash_words, permutation
from podium.errors import ConfigError, DataError
from podium.plugins import Signature, load_function, nearest

if TYPE_CHECKING:
    from podium.data.dataset import RLHFDataset

REQUIRED = ("next_batch", "state_dict", "load_state_dict", "__len__")


class MixingSampler(ResumableSampler):
    """`starts`: where each source begins in the dataset, with the total at the end."""

    def __init__(self, starts: Sequence[int], weights: Sequence[float], batch_size: int, seed: int = 0) -> None:
        super().__init__(starts[-1], batch_size, seed)
        self.starts = list(starts)
        self.sizes = [b - a for a, b in itertools.pairwise(starts)]
        total = float(sum(weights))
        if len(weights) != len(self.sizes) or total <= 0 or min(weights) < 0:
            raise ConfigError(
                f"data.mix_weights {list(weights)} must be one number of at least 0 per source, not all 0"
            )
        if any(weight and not size for weight, size in zip(weights, self.sizes, strict=True)):
            raise DataError("a source with a weight in data.mix_weights has no rows")
        self._bounds = np.cumsum(np.array(weights) / total)
        self._orders: dict[tuple[int, int], NDArray[np.int64]] = {}
        self._counted, self._counts = 0, np.zeros(len(self.sizes), dtype=np.int64)

    def next_batch(self) -> list[int]:
        self._catch_up()
        rows = []
        for source in self._sources(self.cursor, self.cursor + self.batch_size).tolist():
            age, place = divmod(int(self._counts[source]), self.sizes[source])
            rows.append(self.starts[source] + int(self._source_order(source, age)[place]))
            self._counts[source] += 1
        self.cursor += self.batch_size
        self._counted = self.cursor
        self.epoch = self.cursor // self.batch_size
        return rows

    def load_state_dict(self, state: dict[str, int]) -> None:
        seed, epoch, cursor = (int(state[key]) for key in ("seed", "epoch", "cursor"))
        if epoch < 0 or cursor < 0 or cursor % self.batch_size:
            raise DataError(f"sampler state epoch={epoch} cursor={cursor} does not fit batches of {self.batch_size}")
        self.seed, self.epoch, self.cursor = seed, epoch, cursor
        self._counted, self._counts = 0, np.zeros(len(self.sizes), dtype=np.int64)

    def _catch_up(self) -> None:
        """How many rows each source has given so far, counted again after a resume."""
        if self._counted != self.cursor:
            self._counts = np.bincount(self._sources(0, self.cursor), minlength=len(self.sizes))
            self._counted = self.cursor

    def _sources(self, start: int, stop: int) -> NDArray[np.int64]:
        shares = hash_words(self.seed, np.arange(start, stop, dtype=np.uint64)) / 2.0**64
        return np.minimum(np.searchsorted(self._bounds, shares, side="right"), len(self.sizes) - 1)

    def _source_order(self, source: int, age: int) -> NDArray[np.int64]:
        key = (source, age)
        if key not in self._orders:
            self._orders = {k: v for k, v in self._orders.items() if k[0] != source or k[1] >= age - 1}
            self._orders[key] = permutation(self.sizes[source], self.seed + 7919 * (source + 1), age)
        return self._orders[key]


def make_sampler(config: Config, dataset: RLHFDataset) -> ResumableSampler:
    """The sampler a config asks for."""
    data, seed = config.data, config.trainer.seed
    offered = {
        "size": len(dataset),
        "batch_size": data.train_batch_size,
        "seed": seed,
        "shuffle": data.shuffle,
        "dataset": dataset,
        "config": config,
    }
    if data.sampler is not None:
        return _own_sampler(data.sampler, offered)
    if data.mix_weights:
        weights = _weights(data.mix_weights, list(data.train_files))
        return MixingSampler(dataset.source_starts, weights, data.train_batch_size, seed)
    return ResumableSampler(len(dataset), data.train_batch_size, seed, data.shuffle)


def _own_sampler(reference: str, offered: Mapping[str, Any]) -> ResumableSampler:
    made: Any = load_function(reference, "data.sampler")
    if not inspect.isclass(made):
        raise ConfigError(f"data.sampler {reference!r} is no class")
    missing = [name for name in REQUIRED if not hasattr(made, name)]
    if missing:
        raise ConfigError(f"data.sampler {reference!r} lacks {', '.join(missing)}; see docs/data.md")
    sampler: Any = made(**Signature(made).accepted(offered))
    if not hasattr(sampler, "epoch"):
        raise ConfigError(f"data.sampler {reference!r} has no attribute 'epoch'; see docs/data.md")
    return sampler  # type: ignore[no-any-return]  # a sampler by its methods


def _weights(given: Mapping[str, float], files: list[str]) -> list[float]:
    for name in given:
        if name not in files:
            raise ConfigError(f"data.mix_weights: {name!r} is not one of data.train_files{nearest(name, files)}")
    return [float(given.get(name, 0.0)) for name in files]
