"""One forward pass: packed inputs, the model's own backbone with a paged plan, the head where a token is drawn.

It runs the module it is given, which may be the trainer's own, without gradients and without changing it. It decides
neither who runs (scheduler.py) nor what a sampled token means (slots.py).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from podium.engines.rollout.native.kv import PagedAttention, PagedKV
from podium.engines.rollout.native.sampling import SamplingRows, sample_tokens, uniform
from podium.engines.rollout.native.scheduler import Batch, Scheduler
from podium.engines.rollout.native.slots import Slots
from podium.engines.rollout.request import Array
from podium.models.attention import AttentionPlan, PackedAttention
from podium.models.load import backbone, logit_transform, output_head

HEAD_VALUES = 1 << 24
"""Logits made at once: 64 MiB in float32."""


class Runner:
    """Turns a batch into one sampled token for each slot that is due."""

    def __init__(self, module: PreTrainedModel, dtype: torch.dtype) -> None:
        self.module, self.dtype = module, dtype
        self.device = next(module.parameters()).device
        self.vocab_size = output_head(module).out_features

    @torch.no_grad()
    def run(self, batch: Batch, scheduler: Scheduler, cache: PagedKV) -> tuple[Array, Array, Array]:
        """Tokens, log-probs and raw log-probs [N] of `batch.sampling_slots()`."""
        slots, tables = scheduler.slots, scheduler.tables
        if batch.copy_from.size:
            cache.copy_blocks(*(torch.from_numpy(x).to(self.device) for x in (batch.copy_from, batch.copy_to)))
        lengths = tables.lengths[batch.decode]
        members = np.concatenate([batch.decode, np.array([chunk.slot for chunk in batch.chunks], dtype=np.int64)])
        pages = tables.table[members, : int(tables.num_blocks[members].max())]
        plan = PagedAttention(cache, pages, lengths, batch.chunks)
        tokens = np.concatenate([slots.last_token[batch.decode], *(chunk.tokens for chunk in batch.chunks)])
        positions = np.concatenate([lengths - 1, *(np.arange(chunk.start, chunk.end) for chunk in batch.chunks)])
        hidden = self._hidden(tokens, positions, plan)
        rows = self._rows_to_sample(batch)
        if rows is not None:
            hidden = hidden[torch.from_numpy(rows).to(self.device)]
        return self._sample(hidden, slots, batch.sampling_slots())

    @torch.no_grad()
    def log_probs(self, tokens: list[int]) -> Tensor:
        """Log-probs [P-1] of tokens 1 to P-1, each given those before it."""
        plan = PackedAttention([len(tokens)], self.device)
        hidden = self._hidden(np.array(tokens), np.arange(len(tokens)), plan)
        with self._autocast():
            log_probs = self._logits(hidden[:-1]).log_softmax(-1)
        return log_probs.gather(1, torch.tensor(tokens[1:], device=self.device)[:, None]).squeeze(1)

    def _hidden(self, tokens: Array, positions: Array, plan: AttentionPlan) -> Tensor:
        """Last hidden states [T, hidden] of packed tokens."""
        ids, where = (torch.from_numpy(x).to(self.device)[None] for x in (tokens, positions))
        with self._autocast():
            out = backbone(self.module)(input_ids=ids, position_ids=where, attention_plan=plan, use_cache=False)
        hidden: Tensor = out.last_hidden_state[0]
        return hidden

    @staticmethod
    def _rows_to_sample(batch: Batch) -> Array | None:
        """The packed position each sample is drawn from; None when it is every position."""
        if not batch.chunks:
            return None
        ends = batch.decode.size + np.cumsum([chunk.tokens.size for chunk in batch.chunks])
        counts = [chunk.samples.size for chunk in batch.chunks]
        return np.concatenate([np.arange(batch.decode.size), np.repeat(ends - 1, counts)])

    def _sample(self, hidden: Tensor, slots: Slots, due: Array) -> tuple[Array, Array, Array]:
        """Draw a token for each row of `hidden` [N, hidden]; the logits exist for a few rows at a time."""
        rows = sampling_rows(slots, due, self.device)
        step = max(1, HEAD_VALUES // self.vocab_size)
        parts = []
        with self._autocast():
            for start in range(0, max(1, len(due)), step):  # a chunk of a prompt may leave nothing to sample
                inside = slice(start, start + step)
                parts.append(sample_tokens(self._logits(hidden[inside]), rows[inside]))
        tokens, log_probs, raw = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
        return tokens, log_probs, raw

    def _logits(self, hidden: Tensor) -> Tensor:
        head = output_head(self.module)
        return logit_transform(self.module)(head(hidden)).float()

    def _autocast(self) -> AbstractContextManager[object]:
        if next(self.module.parameters()).dtype == self.dtype:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


def sampling_rows(slots: Slots, due: Array, device: torch.device) -> SamplingRows:
    """How the slots that are due sample their next token."""

    def on_device(values: Array) -> Tensor:
        return torch.from_numpy(values).to(device)

    temperature, top_p, min_p, top_k = (x[due] for x in (slots.temperature, slots.top_p, slots.min_p, slots.top_k))
    seed, sample, position = (on_device(x[due]) for x in (slots.seed, slots.sample, slots.num_written))
    return SamplingRows(
        temperature=on_device(temperature),
        top_k=on_device(top_k),
        top_p=on_device(top_p),
        min_p=on_device(min_p),
        uniform=uniform(seed, sample, position),
        greedy=bool((temperature == 0).any()),
        tempered=bool(((temperature != 1) & (temperature != 0)).any()),
        filtered=bool(((top_p < 1) | (min_p > 0) | (top_k > 0)).any()),
    )
