"""The runner of a GPU: prompts in packed passes, decoding as replays of CUDA graphs.

A graph holds one decode step of one batch size, from the slots' last tokens to their next ones, and is captured on
first use. A decode pass is some replays in a row and a snapshot of what they drew; nothing waits for the host. Graphs
are thrown away when something they point to moves (weights, cache, stopping rules), and captured anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from podium.engines.rollout.native.body import Model
from podium.engines.rollout.native.gpu import elementwise
from podium.engines.rollout.native.gpu.draw import draw_tokens
from podium.engines.rollout.native.gpu.graphs import Graphs, bucket_of
from podium.engines.rollout.native.gpu.paged_attention import choose_splits
from podium.engines.rollout.native.gpu.plans import DecodePlan
from podium.engines.rollout.native.gpu.state import DeviceState, Snapshot
from podium.engines.rollout.native.kv import PagedAttention, PagedKV, to_device
from podium.engines.rollout.native.runner import Sampled, is_filtered
from podium.engines.rollout.native.sampling import SamplingRows, sample_tokens, uniform
from podium.engines.rollout.native.scheduler import Batch, Scheduler
from podium.engines.rollout.stopping import StopRules

WINDOW = 8
"""Tokens decoded between two looks at the host."""


@dataclass(frozen=True)
class GraphFlight:
    """A pass on the device, and the snapshot that follows it."""

    batch: Batch
    snapshot: Snapshot

    def land(self) -> Sampled:
        return self.snapshot.read(self.batch.sampling_slots(), self.batch.first, self.batch.steps)


def num_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


class GraphRunner:
    """Launches batches and returns at once."""

    window, lookahead = WINDOW, 1

    def __init__(
        self, module: PreTrainedModel, dtype: torch.dtype, num_slots: int, pages: int, rules: StopRules
    ) -> None:
        """`pages`: that one sequence may have."""
        self.model = Model(module, dtype, elementwise)
        self.device, self.num_slots, self.rules = self.model.device, num_slots, rules
        self.state = DeviceState(num_slots, pages, self.model.vocab_size, self.device)
        self.rows = torch.full((bucket_of(num_slots),), num_slots, dtype=torch.int64, device=self.device)
        self._every = torch.arange(len(self.rows), dtype=torch.int32, device=self.device)
        self.processors = num_processors(self.device)
        self.graphs = Graphs()

    @torch.no_grad()
    def launch(self, batch: Batch, scheduler: Scheduler, cache: PagedKV) -> GraphFlight:
        self.model.refresh()
        self.state.rules.follow(self.rules)
        # the places themselves: a probe may have followed the weights since the last pass
        self.graphs.follow((cache.data.data_ptr(), self.state.rules.data.data_ptr(), self.model.body.storages))
        if batch.copy_from.size:
            elementwise.copy_pages(
                cache.data, to_device(batch.copy_from, self.device), to_device(batch.copy_to, self.device)
            )
        if (members := batch.sampling_slots()).size:
            self.state.set_pages(scheduler.tables, members)
        if batch.chunks:
            self._compute_prompts(batch, scheduler, cache)
        else:
            self._decode(batch, scheduler, cache)
        return GraphFlight(batch, self.state.snapshot())

    def reset(self) -> None:
        self.state.clear()

    # ---- prompts

    def _compute_prompts(self, batch: Batch, scheduler: Scheduler, cache: PagedKV) -> None:
        chunks, tables = batch.chunks, scheduler.tables
        leaders = np.array([chunk.slot for chunk in chunks])
        pages = tables.table[leaders, : int(tables.num_blocks[leaders].max())]
        plan = PagedAttention(cache, pages, np.zeros(0, np.int64), chunks)
        tokens = to_device(np.concatenate([chunk.tokens for chunk in chunks]), self.device)
        positions = to_device(np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks]), self.device)
        hidden = self.model.hidden(tokens, positions, plan)
        members = batch.sampling_slots()
        if members.size == 0:
            return
        samples = np.array([chunk.samples.size for chunk in chunks])
        ends = np.cumsum([chunk.tokens.size for chunk in chunks]) - 1
        lengths = np.repeat([chunk.end for chunk in chunks], samples)
        self.state.place(scheduler.slots, members, lengths)
        logits = self.model.logits(hidden[to_device(ends[samples > 0], self.device)])
        source = np.repeat(np.cumsum(samples > 0) - 1, samples).astype(np.int32)
        filtered = is_filtered(scheduler.slots, members)
        self._draw(logits, to_device(source, self.device), to_device(members, self.device), filtered)

    # ---- decoding

    def _decode(self, batch: Batch, scheduler: Scheduler, cache: PagedKV) -> None:
        filtered = is_filtered(scheduler.slots, batch.decode)
        bucket = bucket_of(batch.decode.size)
        rows = self.rows[:bucket]
        graph = self.graphs.get((bucket, filtered))
        if graph is None:
            rows.fill_(self.num_slots)  # warm-up and capture move no slot
            graph = self.graphs.capture((bucket, filtered), lambda: self._step(rows, cache, filtered))
        members = np.full(bucket, self.num_slots)
        members[: batch.decode.size] = batch.decode
        rows.copy_(to_device(members, self.device))
        graph.replay(batch.steps)

    def _step(self, rows: Tensor, cache: PagedKV, filtered: bool) -> None:
        """One token for each slot in `rows` [B], all on the device."""
        tokens, positions, places = self.state.read_inputs(rows, cache.block_size)
        splits = choose_splits(len(rows), cache.shape.num_kv_heads, cache.shape.head_dim, self.processors)
        plan = DecodePlan(cache, self.state, rows, places, splits)
        logits = self.model.logits(self.model.hidden(tokens, positions, plan))
        self._draw(logits, self._every[: len(rows)], rows, filtered)

    def _draw(self, logits: Tensor, source: Tensor, rows: Tensor, filtered: bool) -> None:
        integers, floats = self.state.integers, self.state.floats
        if filtered:
            seed, sample, written = (integers[name][rows] for name in ("seed", "sample", "written"))
            sampling = SamplingRows(
                **{name: floats[name][rows] for name in ("temperature", "top_p", "min_p")},
                top_k=integers["top_k"][rows],
                uniform=uniform(seed, sample, written),
                greedy=True,
                tempered=True,
                filtered=True,
            )
            drawn = sample_tokens(logits[source].float(), sampling)
        else:
            numbers = (integers["seed"], integers["sample"], integers["written"])
            drawn = draw_tokens(logits, source, rows, integers["lengths"], numbers, floats["temperature"])
        self.state.record(rows, *drawn)
