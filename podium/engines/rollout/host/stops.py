"""Where a response ends, by the native engine's rules: stop tokens for the engine, stop strings looked for here."""

from __future__ import annotations

from typing import Any

from podium.engines.rollout.base import SamplingParams
from podium.engines.rollout.host.records import HostSettings
from podium.engines.rollout.stopping import StopRules


def stop_tokens(settings: HostSettings, params: SamplingParams) -> list[int]:
    """Every token that ends a response."""
    ends = () if params.ignore_eos else settings.eos_token_ids
    return sorted({*ends, *params.stop_token_ids})


class StopWatch:
    """Looks for stop strings in what has been written. The tokenizer is loaded when the first one is asked for."""

    def __init__(self, settings: HostSettings) -> None:
        self.settings = settings
        self._rules: StopRules | None = None

    def end(self, params: SamplingParams, tokens: list[int], seen: int) -> int:
        """The length of the response whose last token completes a stop string, looking at tokens from `seen` on; 0:
        none does."""
        if self._rules is None:
            self._rules = StopRules(self.settings.vocab_size, self.settings.eos_token_ids, self._tokenizer())
        return self._rules.end_of(params, tokens, seen)

    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        trust = self.settings.trust_remote_code
        return AutoTokenizer.from_pretrained(self.settings.model, trust_remote_code=trust)
