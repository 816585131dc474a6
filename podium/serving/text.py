"""Tokens into text while they come: only what can no longer change is given out.

A character may be spread over several tokens, and the beginning of a stop string may turn out to be one; both are held
back until it is clear.
"""

from __future__ import annotations

from typing import Any

BROKEN = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """One response as text, without the stop string that ends it and without special tokens."""

    def __init__(self, tokenizer: Any, stop: tuple[str, ...]) -> None:
        self.tokenizer, self.stop = tokenizer, stop
        self._given = 0

    def whole(self, token_ids: list[int]) -> str:
        """The text of a response that has ended."""
        text = str(self.tokenizer.decode(token_ids, skip_special_tokens=True))
        found = [place for place in (text.find(stop) for stop in self.stop) if place >= 0]
        return text[: min(found)] if found else text

    def more(self, token_ids: list[int], ended: bool) -> str:
        """What can be given out now that all of `token_ids` are written."""
        text = self.whole(token_ids)
        if not ended:
            text = text.rstrip(BROKEN)
            text = text[: len(text) - self._held_back(text)]
        new = text[self._given :]
        self._given = max(self._given, len(text))
        return new

    def _held_back(self, text: str) -> int:
        """The length of the longest end of the text that a stop string begins with."""
        lengths = (
            size
            for stop in self.stop
            for size in range(min(len(stop) - 1, len(text)), 0, -1)
            if text.endswith(stop[:size])
        )
        return max(lengths, default=0)
