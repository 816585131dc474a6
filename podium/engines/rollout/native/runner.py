"""One pass on the host's schedule: packed inputs, the model with a paged plan, the head where a token is drawn.

It runs the module it is given, which may be the trainer's own, without gradients and without changing its values. It
decides neither who runs (scheduler.py) nor what a sampled token means (slots.py). gpu/runner.py does the same with the
state on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from podium.engines.rollout.native.body import Model, Shown, layer_size
from podium.engines.rollout.native.kv import PagedAttention, PagedKV, to_device
from podium.engines.rollout.native.sampling import SamplingRows, sample_tokens, uniform
from podium.engines.rollout.native.scheduler import Batch, Scheduler
from podium.engines.rollout.native.slots import Slots
from podium.engines.rollout.request import Array
from podium.models.vision import image_places, image_token_id

HEAD_VALUES = 1 << 24
"""Logits made at once: 64 MiB in float32."""
THREAD_WORK = 1 << 25
"""Multiplications of one layer that a CPU thread is worth: with less, it takes longer to wake it up than it saves."""

Sampled = tuple[Array, Array, Array]
"""Tokens, log-probs and raw log-probs [n, steps] of `batch.sampling_slots()`."""


class Flight(Protocol):
    """A pass under way."""

    def land(self) -> Sampled:
        """Wait for it to end."""
        ...


@dataclass(frozen=True)
class Landed:
    """A pass that was computed at once."""

    sampled: Sampled

    def land(self) -> Sampled:
        return self.sampled


class BatchRunner(Protocol):
    """What the engine needs of a runner."""

    model: Model
    window: int
    """Tokens of a sequence in one decode pass."""
    lookahead: int
    """Passes that may be under way while the next one is planned."""

    def launch(self, batch: Batch, scheduler: Scheduler, cache: PagedKV) -> Flight: ...

    def reset(self) -> None:
        """Forget what was drawn."""
        ...


class Runner:
    """Turns a batch into one sampled token for each slot that is due."""

    window, lookahead = 1, 0

    def __init__(self, module: PreTrainedModel, dtype: torch.dtype) -> None:
        self.model = Model(module, dtype)
        self.device = self.model.device
        self._layer_size = layer_size(module)

    def launch(self, batch: Batch, scheduler: Scheduler, cache: PagedKV) -> Landed:
        with torch.no_grad(), at_most_threads(int(batch.num_tokens * self._layer_size / THREAD_WORK)):
            return self._launch(batch, scheduler, cache)

    def _launch(self, batch: Batch, scheduler: Scheduler, cache: PagedKV) -> Landed:
        self.model.refresh()
        slots, tables = scheduler.slots, scheduler.tables
        if batch.copy_from.size:
            cache.copy_blocks(to_device(batch.copy_from, self.device), to_device(batch.copy_to, self.device))
        lengths = tables.lengths[batch.decode]
        members = np.concatenate([batch.decode, np.array([chunk.slot for chunk in batch.chunks], dtype=np.int64)])
        pages = tables.table[members, : int(tables.num_blocks[members].max())]
        plan = PagedAttention(cache, pages, lengths, batch.chunks)
        tokens = np.concatenate([slots.last_token[batch.decode], *(chunk.tokens for chunk in batch.chunks)])
        positions = np.concatenate([lengths - 1, *(np.arange(chunk.start, chunk.end) for chunk in batch.chunks)])
        ids, places = to_device(tokens, self.device), to_device(positions, self.device)
        hidden = self.model.hidden(ids, places, plan, self._shown(batch, slots))
        rows = self._rows_to_sample(batch)
        if rows is not None:
            hidden = hidden[to_device(rows, self.device)]
        return Landed(self._sample(hidden, slots, batch))

    def _shown(self, batch: Batch, slots: Slots) -> Shown | None:
        """The images of the prompts that have tokens in this pass; a chunk of a prompt shows its part of them."""
        images, features, places = [], [], []
        before, start = 0, batch.decode.size
        for chunk in batch.chunks:
            request = slots.requests[chunk.slot]
            if request is not None and request.images is not None:
                at = image_places(request.prompt, image_token_id(self.model.module.config))
                inside = np.flatnonzero((at >= chunk.start) & (at < chunk.end))
                if inside.size:
                    images.append(request.images)
                    features.append(before + inside)
                    places.append(start + at[inside] - chunk.start)
                    before += at.size
            start += chunk.tokens.size
        if not images:
            return None
        return Shown(images, *(to_device(np.concatenate(each), self.device) for each in (features, places)))

    def reset(self) -> None:
        """Nothing is kept between passes."""

    @staticmethod
    def _rows_to_sample(batch: Batch) -> Array | None:
        """The packed position each sample is drawn from; None when it is every position."""
        if not batch.chunks:
            return None
        ends = batch.decode.size + np.cumsum([chunk.tokens.size for chunk in batch.chunks])
        counts = [chunk.samples.size for chunk in batch.chunks]
        return np.concatenate([np.arange(batch.decode.size), np.repeat(ends - 1, counts)])

    def _sample(self, hidden: Tensor, slots: Slots, batch: Batch) -> Sampled:
        """Draw a token for each row of `hidden` [N, hidden]; the logits exist for a few rows at a time."""
        due = batch.sampling_slots()
        rows = sampling_rows(slots, due, batch.first, self.device)
        step = max(1, HEAD_VALUES // self.model.vocab_size)
        parts = []
        for start in range(0, max(1, len(due)), step):  # a chunk of a prompt may leave nothing to sample
            inside = slice(start, start + step)
            parts.append(sample_tokens(self.model.logits(hidden[inside]).float(), rows[inside]))
        tokens, log_probs, raw = (torch.cat(column)[:, None].cpu().numpy() for column in zip(*parts, strict=True))
        return tokens, log_probs, raw


@contextmanager
def at_most_threads(count: int) -> Iterator[None]:
    """Compute with so many CPU threads, or as many as there are, or at least one."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(count, before)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def sampling_rows(slots: Slots, due: Array, position: Array, device: torch.device) -> SamplingRows:
    """How the slots that are due sample their tokens number `position`."""
    temperature, top_p, min_p, top_k = (x[due] for x in (slots.temperature, slots.top_p, slots.min_p, slots.top_k))
    numbers = (to_device(x, device) for x in (slots.seed[due], slots.sample[due], position))
    return SamplingRows(
        temperature=to_device(temperature, device),
        top_k=to_device(top_k, device),
        top_p=to_device(top_p, device),
        min_p=to_device(min_p, device),
        uniform=uniform(*numbers),
        greedy=bool((temperature == 0).any()),
        tempered=bool(((temperature != 1) & (temperature != 0)).any()),
        filtered=is_filtered(slots, due),
    )


def is_filtered(slots: Slots, due: Array) -> bool:
    """Some of the slots drop tokens before they draw."""
    return bool(((slots.top_p[due] < 1) | (slots.min_p[due] > 0) | (slots.top_k[due] > 0)).any())
