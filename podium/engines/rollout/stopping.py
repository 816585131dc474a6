"""When a response ends: one table lookup per token, and text only where a stop string may have been completed.

A rule is a set of stopping conditions; its row of the table says for each token of the vocabulary what writing it
means. Only tokens whose text has the last character of a stop string are worth a look at the text, so a response is
never decoded token by token. Length limits are not here: they are arithmetic on the slots.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from podium.engines.rollout.base import SamplingParams
from podium.engines.rollout.request import Array
from podium.errors import RolloutError

GOES_ON, IS_EOS, IS_STOP, MAY_COMPLETE = 0, 1, 2, 3

Rule = tuple[tuple[str, ...], tuple[int, ...], bool]


class Decoder(Protocol):
    """The part of a tokenizer that stop strings need."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = ...) -> Any: ...

    def __len__(self) -> int: ...


class StopRules:
    """All rules seen so far, as one table [rules, vocabulary]."""

    def __init__(self, vocab_size: int, eos_token_ids: tuple[int, ...], tokenizer: Decoder | None) -> None:
        self.vocab_size, self.eos_token_ids, self.tokenizer = vocab_size, eos_token_ids, tokenizer
        self.table = np.zeros((0, vocab_size), dtype=np.int8)
        self._index: dict[Rule, int] = {}
        self._strings: list[tuple[str, ...]] = []
        self._token_texts: list[str] | None = None

    def index_of(self, params: SamplingParams) -> int:
        """The table's row for these conditions."""
        rule = (params.stop, params.stop_token_ids, params.ignore_eos)
        if rule not in self._index:
            self.table = np.concatenate([self.table, self._row(params)[None]])
            self._strings.append(params.stop)
            self._index[rule] = len(self._strings) - 1
        return self._index[rule]

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

    def _row(self, params: SamplingParams) -> Array:
        row = np.zeros(self.vocab_size, dtype=np.int8)
        for stop in params.stop:
            row[self._candidates(stop[-1])] = MAY_COMPLETE
        row[list(params.stop_token_ids)] = IS_STOP
        if not params.ignore_eos:
            row[list(self.eos_token_ids)] = IS_EOS
        return row

    def _candidates(self, last: str) -> Array:
        """Tokens that can end with this character inside a text; all of them where a token alone does not tell."""
        if last.isspace() or not last.isascii():
            return np.arange(self.vocab_size)
        if self._token_texts is None:
            assert self.tokenizer is not None
            known = min(self.vocab_size, len(self.tokenizer))
            self._token_texts = [self.tokenizer.decode([i], skip_special_tokens=False) for i in range(known)]
        return np.array([i for i, text in enumerate(self._token_texts) if last in text], dtype=np.int64)
