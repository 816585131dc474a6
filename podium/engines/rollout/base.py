"""What every rollout engine promises: the records that go in and out, and the protocol itself.

Tokens in, tokens out: an engine never decodes and encodes a response again. Nothing here samples or schedules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from podium.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from podium.engines.rollout.request import Request


class StopReason(StrEnum):
    """Why a response ended."""

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    # of whole episodes
    ANSWERED = "answered"
    DONE = "done"
    TURNS = "turns"
    TIMEOUT = "timeout"
    TOOL_ERRORS = "tool_errors"
    ERROR = "error"

    def is_truncated(self) -> bool:
        """True when somebody else than the model (or its environment) ended the response."""
        return self in (
            *(StopReason.LENGTH, StopReason.ABORTED, StopReason.TURNS, StopReason.TIMEOUT),
            *(StopReason.TOOL_ERRORS, StopReason.ERROR),
        )


@dataclass(frozen=True)
class SamplingParams:
    """How one response is sampled. Filters apply in the order temperature, top-k, top-p, min-p."""

    max_tokens: int
    """Tokens a response may have."""
    temperature: float = 1.0
    """0: greedy."""
    top_p: float = 1.0
    """Keep the likeliest tokens until their probabilities reach this sum. 1: off."""
    top_k: int = -1
    """Keep this many of the likeliest tokens. -1: off."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the likeliest. 0: off."""
    stop: tuple[str, ...] = ()
    """Strings that end a response; the token that completes one is its last token."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a response, beside the model's own end-of-sequence tokens."""
    ignore_eos: bool = False
    """Write on past the end-of-sequence token, for benchmarks."""

    def __post_init__(self) -> None:
        rules = (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", self.temperature >= 0.0, "0 (greedy) or above"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1 (1 is off)"),
            ("top_k", self.top_k == -1 or self.top_k >= 1, "-1 (off) or at least 1"),
            ("min_p", 0.0 <= self.min_p < 1.0, "from 0 (off) to below 1"),
            ("stop", type(self.stop) is tuple and all(self.stop), "a tuple of non-empty strings"),
        )
        for name, holds, allowed in rules:
            if not holds:
                raise ConfigError(f"SamplingParams.{name} is {getattr(self, name)!r}; it must be {allowed}.")


class ImagePrompt(list[int]):
    """A prompt's tokens with the images that its image tokens stand for (see models/vision.py)."""

    def __init__(self, tokens: Iterable[int], images: Any) -> None:
        super().__init__(tokens)
        self.images = images


@dataclass(frozen=True)
class Completion:
    """One sampled response."""

    token_ids: list[int]
    """What the model wrote, up to and including the token that ended it."""
    log_probs: list[float]
    """Of each token under the distribution it was drawn from (0 when greedy)."""
    raw_log_probs: list[float]
    """Of each token under the model itself, before temperature and filters."""
    stop_reason: StopReason
    version: int
    """The oldest weights that wrote any of the tokens."""


class RolloutEngine(Protocol):
    """Turns prompts into completions with weights it is told to load."""

    version: int
    """The weights it holds: the number of the last publish."""

    @property
    def module(self) -> nn.Module | None:
        """The module it runs, when it lives in this process; a trainer's own module means shared weights."""
        ...

    def generate(
        self, prompts: list[list[int]], params: SamplingParams, n: int = 1, seeds: list[int] | None = None
    ) -> list[list[Completion]]:
        """`n` completions per prompt. One 64-bit seed per prompt (default: its place in the list); sample k draws
        from (seed, k)."""
        ...

    def submit(self, prompt: list[int], params: SamplingParams, seed: int = 0, sample: int = 0) -> Request:
        """Queue sample number `sample` of a prompt; await the request, or step() until it is done."""
        ...

    def step(self) -> list[Request]:
        """Advance every running request; the requests that ended."""
        ...

    def abort(self, request: Request) -> None:
        """End a request now, with what it has written."""
        ...

    def pause(self) -> None:
        """Stop making tokens; requests stay."""
        ...

    def resume(self) -> None: ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copy a complete set of named tensors into the engine's own module."""
        ...

    def set_version(self, version: int) -> None:
        """The weights the engine shares have changed in place: whatever was computed from the old ones is dropped."""
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]] | None:
        """The tensors the engine really runs, in Hugging Face names; None when it cannot show them."""
        ...

    def probe(self) -> Tensor:
        """Log-probs [P-1] of the fixed tokens `probe_tokens`, made the way it generates."""
        ...

    def probe_tokens(self) -> list[int]: ...

    def sleep(self) -> None:
        """Give back the memory of the KV cache, and of weights that only the engine uses."""
        ...

    def wake(self) -> None: ...


def make_probe_tokens(vocab_size: int, count: int = 24) -> list[int]:
    """A fixed token sequence spread over the vocabulary."""
    return [(7 + 2654435761 * i) % vocab_size for i in range(1, count + 1)]
