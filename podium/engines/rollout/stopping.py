"""When a response ends: one table lookup per token, and text only where a stop string may have been completed.

A rule is a set of stopping conditions; its row of the table says for each token of the vocabulary what writing it
means. Only tokens whose text has the last character of a stop string are worth a look at the text, so a response is
never decoded token by token. A server may see new conditions with every request, so the table has a few rows that are
used again; it grows only when more of them are in use at once. Length limits are not here: they are arithmetic on the
slots.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any, Protocol

import numpy as np

from podium.engines.rollout.base import SamplingParams
from podium.engines.rollout.request import Array
from podium.errors import RolloutError

GOES_ON, IS_EOS, IS_STOP, MAY_COMPLETE = 0, 1, 2, 3
NUM_ROWS = 64
"""Of the table at first: bytes of host and device memory for each token of the vocabulary."""

Rule = tuple[tuple[str, ...], tuple[int, ...], bool]


class Decoder(Protocol):
    """The part of a tokenizer that stop strings need."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = ...) -> Any: ...

    def __len__(self) -> int: ...


class StopRules:
    """The rules in use and the latest ones, as one table [rows, vocabulary]."""

    def __init__(
        self, vocab_size: int, eos_token_ids: tuple[int, ...], tokenizer: Decoder | None, num_rows: int = NUM_ROWS
    ) -> None:
        self.vocab_size, self.eos_token_ids, self.tokenizer = vocab_size, eos_token_ids, tokenizer
        self.table = np.zeros((num_rows, vocab_size), dtype=np.int8)
        self.num_writes = 0
        self.written_at = np.zeros(num_rows, dtype=np.int64)
        """Of each row: which write it was. Whoever has a copy of the table compares it with `num_writes`."""
        self._index: OrderedDict[Rule, int] = OrderedDict()  # the one used last at the end
        self._strings: list[tuple[str, ...]] = []
        self._token_texts: list[str] | None = None
        self._of_character: dict[str, Array] = {}
        self._lock = threading.Lock()

    def index_of(self, params: SamplingParams, in_use: Callable[[], Collection[int]] = tuple) -> int:
        """The table's row for these conditions. It may be another rule's later, unless `in_use` names it then."""
        rule = (params.stop, params.stop_token_ids, params.ignore_eos)
        if rule not in self._index:
            row = self._free_row(in_use)
            self.table[row] = self._row(params)
            self._strings[row] = params.stop
            self.num_writes += 1
            self.written_at[row] = self.num_writes
            self._index[rule] = row
        self._index.move_to_end(rule)
        return self._index[rule]

    def _free_row(self, in_use: Callable[[], Collection[int]]) -> int:
        """One that no rule has had, else that of the rule not used for the longest time, else a new one."""
        rows = len(self._strings)
        if rows == len(self.table):
            taken = set(in_use())
            rule = next((rule for rule, row in self._index.items() if row not in taken), None)
            if rule is not None:
                return self._index.pop(rule)
            self.table = np.concatenate([self.table, np.zeros_like(self.table)])
            self.written_at = np.concatenate([self.written_at, np.zeros_like(self.written_at)])
        self._strings.append(())
        return rows

    def check(self, params: SamplingParams) -> None:
        """Refuse conditions that could never be seen."""
        bad = [token for token in params.stop_token_ids if not 0 <= token < self.vocab_size]
        if bad:
            raise RolloutError(
                f"Stop token {bad[0]} is outside the model's vocabulary of {self.vocab_size} tokens (0 to "
                f"{self.vocab_size - 1})."
            )
        if params.stop and self.tokenizer is None:
            raise RolloutError(f"Stop strings {params.stop} need a tokenizer; give the engine one.")

    def tail_tokens(self, rule: int) -> int:
        """How many of the last tokens must be decoded to see a stop string: each has a byte at least."""
        return max(len(text.encode()) for text in self._strings[rule]) + 8

    def completes(self, rule: int, tail: Array) -> bool:
        """True when the text of the last tokens has a stop string."""
        assert self.tokenizer is not None
        text = self.tokenizer.decode(tail.tolist(), skip_special_tokens=False)
        return any(stop in text for stop in self._strings[rule])

    def end_of(self, params: SamplingParams, tokens: list[int], seen: int = 0) -> int:
        """The length up to the token that completes a stop string, looking at tokens from `seen` on; 0: none does.

        For engines that end a response elsewhere. Several threads may ask.
        """
        with self._lock:
            rule = self.index_of(params)
            tail = self.tail_tokens(rule)
            for count in range(seen + 1, len(tokens) + 1):
                may = self.table[rule, tokens[count - 1]] == MAY_COMPLETE
                if may and self.completes(rule, np.asarray(tokens[max(0, count - tail) : count])):
                    return count
        return 0

    def _row(self, params: SamplingParams) -> Array:
        row = np.zeros(self.vocab_size, dtype=np.int8)
        for stop in params.stop:
            row[self._candidates(stop[-1])] = MAY_COMPLETE
        row[list(params.stop_token_ids)] = IS_STOP
        if not params.ignore_eos:
            row[list(self.eos_token_ids)] = IS_EOS
        return row

    def _candidates(self, last: str) -> Array | slice:
        """Tokens that can end with this character inside a text; all of them where a token alone does not tell."""
        if last.isspace() or not last.isascii():
            return slice(None)
        if self._token_texts is None:
            assert self.tokenizer is not None
            known = min(self.vocab_size, len(self.tokenizer))
            self._token_texts = [self.tokenizer.decode([i], skip_special_tokens=False) for i in range(known)]
        if last not in self._of_character:
            found = [i for i, text in enumerate(self._token_texts) if last in text]
            self._of_character[last] = np.array(found, dtype=np.int64)
        return self._of_character[last]
