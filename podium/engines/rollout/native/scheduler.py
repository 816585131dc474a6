"""Who runs in the next forward pass: continuous batching over slots and pages.

With a window of 1 (a CPU) each pass decodes one token of every running sequence, and what is left of the token budget
goes to prompts. With a longer window (a GPU) prompts have passes of their own, and a decode pass writes several tokens
of every sequence; the next pass may be planned before the last one's tokens are known. Prompts come in order of
arrival; a long one is cut into chunks. When pages run out the sequences admitted last give theirs back and start again
later from what they have written. It computes nothing: runner.py does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from podium.engines.rollout.base import Completion, SamplingParams, StopReason
from podium.engines.rollout.native.blocks import BlockTables, IntArray
from podium.engines.rollout.native.held import HeldPages
from podium.engines.rollout.native.slots import DECODE, PREFILL, Slots
from podium.engines.rollout.request import Array, Request, Written
from podium.errors import RolloutError

FEWEST_SAMPLES = 8
"""A group enters in parts of at least this many samples: its prompt is computed once per part."""
FEWEST_FREE = 16
PATIENCE = 4
"""Where prompts have passes of their own they wait, for this many decode passes at most, until one slot in FEWEST_FREE
is free: a pass has a fixed price."""


@dataclass
class Prefill:
    """A prompt on its way into the cache, for the slots that will go on from it; its pages belong to the first."""

    slots: IntArray
    tokens: Array
    num_computed: int = 0


@dataclass(frozen=True)
class Chunk:
    """A run of prompt tokens in one forward pass; `samples` draw from its last position when the prompt is complete."""

    slot: int
    start: int
    tokens: Array
    samples: IntArray

    @property
    def end(self) -> int:
        return self.start + self.tokens.size


def _nobody() -> IntArray:
    return np.zeros(0, np.int64)


@dataclass
class Batch:
    """One pass: `steps` tokens for each decoding slot, or fewer for one that is at its limit, and chunks of prompts."""

    decode: IntArray
    steps: int = 1
    chunks: list[Chunk] = field(default_factory=list)
    copy_from: IntArray = field(default_factory=_nobody)
    copy_to: IntArray = field(default_factory=_nobody)
    # of sampling_slots(): the number of each slot's first token here, how many, and who was in the slot
    first: IntArray = field(default_factory=_nobody)
    counts: IntArray = field(default_factory=_nobody)
    ages: IntArray = field(default_factory=_nobody)

    @property
    def num_tokens(self) -> int:
        return self.decode.size + sum(chunk.tokens.size for chunk in self.chunks)

    def sampling_slots(self) -> IntArray:
        """The slots that get tokens from this pass, in the order the runner samples them."""
        return np.concatenate([self.decode, *(chunk.samples for chunk in self.chunks)])


class Scheduler:
    """Waiting groups (requests of one prompt), prompts being computed, and decoding slots."""

    def __init__(self, slots: Slots, tables: BlockTables, max_num_batched_tokens: int, window: int = 1) -> None:
        """`window`: tokens that a decoding sequence writes in one pass."""
        self.slots, self.tables, self.window = slots, tables, window
        self.max_num_batched_tokens = max_num_batched_tokens
        self.held = HeldPages(tables)
        self.waiting: deque[list[Request]] = deque()
        self.prefills: list[Prefill] = []
        self.num_preempted = 0
        self._num_decoded = 0  # decode passes since the last prompt

    def check_fits(self, prompt_tokens: int, params: SamplingParams) -> None:
        """Refuse a request that could not run even alone."""
        pool = self.tables.pool
        need = self.tables.blocks_for(prompt_tokens + params.max_tokens)
        if need > pool.num_blocks:
            raise RolloutError(
                f"A prompt of {prompt_tokens} tokens with max_tokens={params.max_tokens} needs {need} KV pages of "
                f"{pool.block_size} tokens; the cache has {pool.num_blocks} "
                f"({pool.num_blocks * pool.block_size} tokens). Shorten the prompt or the response, or give the cache "
                "more memory: rollout.gpu_memory_utilization, or rollout.kv_cache_gb on a CPU."
            )

    def has_work(self) -> bool:
        return bool(self.waiting) or bool(self.slots.state.any())

    # ---- one step

    def schedule(self, version: int, may_preempt: bool = True) -> Batch | None:
        """Reserve pages for the next pass; `version` is the weights that will write.

        None: nothing can be planned before the passes under way have been committed.
        """
        if self.window == 1:
            batch = self._decode_batch(may_preempt)
            if batch is not None:
                self._add_prompts(batch, version)
        else:
            batch = Batch(_nobody())
            if self._deserve_a_pass():
                self._add_prompts(batch, version)
            self._num_decoded = 0 if batch.chunks else self._num_decoded + 1
            if not batch.chunks:
                batch = self._decode_batch(may_preempt)
        if batch is None or batch.num_tokens == 0:
            return None
        self._plan(batch)
        return batch

    def _deserve_a_pass(self) -> bool:
        """Prompts under way do, and prompts that follow others; the next ones when they are many, or have waited."""
        if self.prefills or self._num_decoded == 0 or self._num_decoded >= PATIENCE:
            return True
        enough = self.slots.state.size // FEWEST_FREE
        return self.slots.free_slots().size >= min(enough, sum(len(group) for group in self.waiting))

    def _decode_batch(self, may_preempt: bool) -> Batch | None:
        """The decoding slots, with pages for their next tokens; where pages lack, fewer tokens, then fewer slots."""
        steps = self.window
        while True:
            decode = self.slots.decoding()
            counts = np.minimum(steps, self.slots.max_tokens[decode] - self.slots.planned[decode])
            need = self.tables.blocks_to_append(decode, counts)
            self.held.make_room(need)
            if need <= self.tables.pool.num_free:
                break
            if steps > 1:
                steps //= 2
            elif not may_preempt:
                return None
            else:
                self.num_preempted += 1
                running = np.flatnonzero(self.slots.state)
                self.preempt(int(running[self.slots.age[running].argmax()]))
        copy_from, copy_to = self.tables.append(decode, counts)
        # sequences of like length lie together: the attention pads a tile to its longest
        order = np.argsort(-self.tables.num_blocks[decode], kind="stable")
        return Batch(decode[order], int(counts.max(initial=1)), [], copy_from, copy_to, counts=counts[order])

    def _add_prompts(self, batch: Batch, version: int) -> None:
        budget = self.max_num_batched_tokens - batch.decode.size
        for prefill in self.prefills:
            budget -= self._add_chunk(batch, prefill, budget)
        while budget > 0 and self.waiting and (admitted := self._admit(version, budget)) is not None:
            budget -= self._add_chunk(batch, admitted, budget)
        self.prefills = [prefill for prefill in self.prefills if prefill.num_computed < prefill.tokens.size]
        batch.chunks.sort(key=lambda chunk: (chunk.start > 0, chunk.tokens.size))

    def _plan(self, batch: Batch) -> None:
        """Count the pass's tokens as planned, and let whoever starts with it decode from here on."""
        slots = batch.sampling_slots()
        starting = slots.size - batch.decode.size
        batch.counts = np.concatenate([batch.counts, np.ones(starting, np.int64)])
        batch.first, batch.ages = self.slots.planned[slots], self.slots.age[slots]
        self.slots.planned[slots] += batch.counts
        self.slots.state[slots] = DECODE
        for chunk in batch.chunks:
            if chunk.samples.size > 1:
                self.tables.fork(chunk.slot, chunk.samples[1:])

    def commit(self, batch: Batch, tokens: Array, log_probs: Array, raw_log_probs: Array) -> list[Request]:
        """Take in what the pass sampled, [n, steps] each; the requests that ended. Slots that were given up or to
        another request since are passed over."""
        slots, counts = batch.sampling_slots(), batch.counts
        same = (self.slots.age[slots] == batch.ages) & (self.slots.state[slots] == DECODE)
        if not same.all():
            slots, counts = slots[same], counts[same]
            tokens, log_probs, raw_log_probs = tokens[same], log_probs[same], raw_log_probs[same]
        return self._finish(self.slots.record(slots, tokens, log_probs, raw_log_probs, counts))

    def _add_chunk(self, batch: Batch, prefill: Prefill, budget: int) -> int:
        """As much of a prompt as the budget allows; the tokens taken."""
        start = prefill.num_computed
        tokens = prefill.tokens[start : start + max(0, budget)]
        if tokens.size == 0:
            return 0
        prefill.num_computed += tokens.size
        complete = prefill.num_computed == prefill.tokens.size
        leader = int(prefill.slots[0])
        batch.chunks.append(Chunk(leader, start, tokens, prefill.slots if complete else prefill.slots[:0]))
        return tokens.size

    def _admit(self, version: int, budget: int) -> Prefill | None:
        """Give the first waiting group slots and pages, or as many of its samples as it is worth."""
        group = self.waiting[0]
        first = group[0]
        tokens = first.prompt if first.written is None else np.concatenate([first.prompt, first.written.token_ids])
        free = self.slots.free_slots()
        num_running = self.slots.state.size - free.size
        if self.window > 1 and budget < tokens.size <= self.max_num_batched_tokens:
            return None  # whole in the next pass rather than in two parts
        # every sample writes into a page of its own at once; running ones will ask for more soon
        wanted = num_running // 4 + tokens.size // self.tables.pool.block_size + min(len(group), free.size)
        self.held.make_room(wanted, spared=first.previous)
        if num_running == 0:  # nobody else will give pages back: then those of the last turn go too
            self.held.make_room(tokens.size // self.tables.pool.block_size + 1)
        spare = self.tables.pool.num_free - num_running // 4 - tokens.size // self.tables.pool.block_size
        count = min(len(group), free.size, spare)
        if count < (1 if num_running == 0 else min(len(group), FEWEST_SAMPLES)):
            return None
        self.waiting.popleft()
        if count < len(group):
            self.waiting.appendleft(group[count:])
        slots = free[:count]
        self.slots.place(slots, group[:count], version)
        computed = self.held.give(first.previous, int(slots[0]), tokens)
        self.tables.extend(int(slots[0]), tokens.size - computed)
        prefill = Prefill(slots, tokens, computed)
        self.prefills.append(prefill)
        return prefill

    # ---- leaving a slot

    def _finish(self, ended: list[tuple[int, Completion]]) -> list[Request]:
        if not ended:
            return []
        for slot, completion in ended:
            request = self.slots.requests[slot]
            if request is not None and request.is_continued:
                self.held.keep(request, slot, np.array(completion.token_ids, dtype=np.int64))
        self.tables.free(np.array([slot for slot, _ in ended]))
        requests = [self.slots.clear(slot) for slot, _ in ended]
        for request, (_, completion) in zip(requests, ended, strict=True):
            request.finish(completion)
        return requests

    def preempt(self, slot: int) -> None:
        """Back to the head of the queue with what it has written; a prompt under way takes its whole group along."""
        if self.slots.state[slot] == PREFILL:
            prefill = next(p for p in self.prefills if slot in p.slots)
            self.prefills.remove(prefill)
            self.tables.free(prefill.slots[:1])
            self.waiting.appendleft([self.slots.clear(s) for s in prefill.slots.tolist()])
            return
        written = self.slots.written(slot)
        request = self.slots.clear(slot)
        request.written = written
        self.tables.free(np.array([slot]))
        self.waiting.appendleft([request])

    def preempt_all(self) -> None:
        """Everything back to the queue, oldest first: the cache is empty."""
        self.held.release_all()
        while (running := np.flatnonzero(self.slots.state)).size:
            self.preempt(int(running[self.slots.age[running].argmax()]))

    def abort(self, request: Request, version: int) -> None:
        """End a request with what it has written. A prompt under way goes back to the queue first."""
        slot = next((i for i, r in enumerate(self.slots.requests) if r is request), None)
        if slot is not None:
            self.preempt(slot)
        group = next((group for group in self.waiting if request in group), None)
        if group is not None:
            group.remove(request)
            if not group:
                self.waiting.remove(group)
            written = request.written or Written.nothing(version)
            request.finish(written.completion(StopReason.ABORTED))

    def forget_all(self) -> list[Request]:
        """Empty every slot and queue; the requests that were there."""
        self.preempt_all()
        requests = [request for group in self.waiting for request in group]
        self.waiting.clear()
        return requests
