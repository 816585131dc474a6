"""The running requests as arrays: one slot each, so that a step over a thousand of them is a few numpy calls.

A slot remembers how its request samples, what it has written, and when it ends. Pages are in blocks.py, the decision
who gets a slot in scheduler.py.
"""

from __future__ import annotations

import numpy as np

from podium.engines.rollout.base import Completion, StopReason
from podium.engines.rollout.request import Array, Request, Written
from podium.engines.rollout.stopping import IS_EOS, IS_STOP, MAY_COMPLETE, StopRules

FREE, PREFILL, DECODE = 0, 1, 2

_SIGNED, _RANGE = 1 << 63, 1 << 64


class Slots:
    """`num_slots` running requests. Arrays are indexed by slot."""

    def __init__(self, num_slots: int, rules: StopRules) -> None:
        self.rules = rules
        self.requests: list[Request | None] = [None] * num_slots
        self.state = np.zeros(num_slots, dtype=np.int8)
        self.age = np.zeros(num_slots, dtype=np.int64)  # order of admission
        self.version = np.zeros(num_slots, dtype=np.int64)
        self.last_token = np.zeros(num_slots, dtype=np.int64)
        self.num_written = np.zeros(num_slots, dtype=np.int64)
        self.planned = np.zeros(num_slots, dtype=np.int64)  # written, or on its way from the device
        self.max_tokens = np.zeros(num_slots, dtype=np.int64)
        self.rule = np.zeros(num_slots, dtype=np.int64)
        self.seed = np.zeros(num_slots, dtype=np.int64)
        self.sample = np.zeros(num_slots, dtype=np.int64)
        self.temperature = np.ones(num_slots, dtype=np.float32)
        self.top_p = np.ones(num_slots, dtype=np.float32)
        self.min_p = np.zeros(num_slots, dtype=np.float32)
        self.top_k = np.full(num_slots, -1, dtype=np.int64)
        self.tokens = np.zeros((num_slots, 64), dtype=np.int64)
        self.log_probs = np.zeros((num_slots, 64), dtype=np.float32)
        self.raw_log_probs = np.zeros((num_slots, 64), dtype=np.float32)
        self._admitted = 0

    def free_slots(self) -> Array:
        return np.flatnonzero(self.state == FREE)

    def decoding(self) -> Array:
        """The slots that have tokens left to write beside those on their way."""
        return np.flatnonzero((self.state == DECODE) & (self.planned < self.max_tokens))

    def place(self, slots: Array, requests: list[Request], version: int) -> None:
        """Put requests of one prompt (and so of one kind of sampling) into free slots."""
        params = requests[0].params
        self._widen(params.max_tokens)
        self.rule[slots] = self.rules.index_of(params, self._rules_in_use)
        self.state[slots] = PREFILL
        self.age[slots] = np.arange(self._admitted, self._admitted + len(requests))
        self._admitted += len(requests)
        self.version[slots] = version
        self.num_written[slots] = 0
        self.max_tokens[slots] = params.max_tokens
        self.temperature[slots], self.top_p[slots] = params.temperature, params.top_p
        self.min_p[slots], self.top_k[slots] = params.min_p, params.top_k
        self.seed[slots] = (requests[0].seed + _SIGNED) % _RANGE - _SIGNED
        self.sample[slots] = [request.sample for request in requests]
        for slot, request in zip(slots.tolist(), requests, strict=True):
            self.requests[slot] = request
            if request.written is not None:
                self._restore(slot, request.written)
        self.planned[slots] = self.num_written[slots]

    def _rules_in_use(self) -> set[int]:
        return set(self.rule[self.state != FREE].tolist())

    def _restore(self, slot: int, written: Written) -> None:
        count = written.token_ids.size
        self.num_written[slot] = count
        self.tokens[slot, :count] = written.token_ids
        self.log_probs[slot, :count] = written.log_probs
        self.raw_log_probs[slot, :count] = written.raw_log_probs
        self.version[slot] = min(written.version, int(self.version[slot])) if count else self.version[slot]

    def written(self, slot: int) -> Written:
        count = int(self.num_written[slot])
        return Written(
            self.tokens[slot, :count].copy(),
            self.log_probs[slot, :count].copy(),
            self.raw_log_probs[slot, :count].copy(),
            int(self.version[slot]),
        )

    def clear(self, slot: int) -> Request:
        """Free a slot; the request that was in it."""
        request = self.requests[slot]
        assert request is not None
        self.requests[slot] = None
        self.state[slot] = FREE
        return request

    def record(
        self, slots: Array, tokens: Array, log_probs: Array, raw_log_probs: Array, counts: Array | int = 1
    ) -> list[tuple[int, Completion]]:
        """Append up to `counts` of the tokens [n, steps] to each slot; the slots that end, and what they wrote.

        What follows the token that ends a response is dropped.
        """
        step = np.arange(tokens.shape[1])
        given = step < np.broadcast_to(counts, slots.shape)[:, None]
        start = self.num_written[slots]
        columns = start[:, None] + step
        row, column = np.broadcast_to(slots[:, None], columns.shape)[given], columns[given]
        self.tokens[row, column] = tokens[given]
        self.log_probs[row, column] = log_probs[given]
        self.raw_log_probs[row, column] = raw_log_probs[given]

        meaning = self.rules.table[self.rule[slots][:, None], tokens]
        for r, j in np.argwhere((meaning == MAY_COMPLETE) & given).tolist():
            meaning[r, j] = IS_STOP if self._completes_stop(int(slots[r]), int(columns[r, j]) + 1) else 0
        ends = given & ((meaning > 0) | (columns + 1 >= self.max_tokens[slots][:, None]))
        has_end, first_end = ends.any(axis=1), ends.argmax(axis=1)
        self.num_written[slots] = start + np.where(has_end, first_end + 1, counts)
        self.last_token[slots] = self.tokens[slots, self.num_written[slots] - 1]

        reasons = {IS_EOS: StopReason.EOS, IS_STOP: StopReason.STOP}
        ended = np.flatnonzero(has_end)
        return [
            (slot, self.written(slot).completion(reasons.get(code, StopReason.LENGTH)))
            for slot, code in zip(slots[ended].tolist(), meaning[ended, first_end[ended]].tolist(), strict=True)
        ]

    def _completes_stop(self, slot: int, end: int) -> bool:
        rule = int(self.rule[slot])
        start = max(0, end - self.rules.tail_tokens(rule))
        return self.rules.completes(rule, self.tokens[slot, start:end])

    def _widen(self, columns: int) -> None:
        width = self.tokens.shape[1]
        if columns > width:
            extra = ((0, 0), (0, max(columns, 2 * width) - width))
            self.tokens = np.pad(self.tokens, extra)
            self.log_probs = np.pad(self.log_probs, extra)
            self.raw_log_probs = np.pad(self.raw_log_probs, extra)
