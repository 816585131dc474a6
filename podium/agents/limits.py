"""How long an episode may go on: turns, tokens, seconds, tool errors.

A limit is a small object that looks at an episode's progress and says why it must end, or nothing. Limits do not stop
anything themselves; the loop asks them between turns.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from podium.engines.rollout.base import StopReason


@dataclass
class Progress:
    """How far an episode has come."""

    num_turns: int = 0
    num_errors: int = 0
    context_tokens: int = 0
    """The prompt and everything after it, what the model would read next."""
    started_s: float = field(default_factory=time.monotonic)


class Limit(Protocol):
    def reached(self, progress: Progress) -> StopReason | None:
        """Why no further turn may begin."""
        ...


@dataclass(frozen=True)
class TurnLimit:
    """`max_turns` turns that the environment answers, and one last one that it does not."""

    max_turns: int

    def is_last(self, progress: Progress) -> bool:
        """Whether the turn just written was the last one."""
        return progress.num_turns > self.max_turns

    def reached(self, progress: Progress) -> StopReason | None:
        return StopReason.TURNS if self.is_last(progress) else None


@dataclass(frozen=True)
class ContextLimit:
    """`max_tokens` of context may stand before a turn; `max_model_len` with a turn."""

    max_tokens: int
    max_model_len: int | None = None

    def reached(self, progress: Progress) -> StopReason | None:
        return StopReason.LENGTH if progress.context_tokens > self.max_tokens or self.room(progress) < 1 else None

    def room(self, progress: Progress) -> int:
        """Tokens the model may still read and write."""
        longest = self.max_model_len or 1 << 62
        return longest - progress.context_tokens


@dataclass(frozen=True)
class TimeLimit:
    """Seconds from the episode's start; None: no limit."""

    seconds: float | None = None

    def left_s(self, progress: Progress) -> float | None:
        return None if self.seconds is None else max(0.0, progress.started_s + self.seconds - time.monotonic())

    def reached(self, progress: Progress) -> StopReason | None:
        left = self.left_s(progress)
        return StopReason.TIMEOUT if left is not None and left <= 0 else None


@dataclass(frozen=True)
class ToolErrorLimit:
    """Searches and tools that may fail; None: no limit."""

    max_errors: int | None = None

    def reached(self, progress: Progress) -> StopReason | None:
        over = self.max_errors is not None and progress.num_errors > self.max_errors
        return StopReason.TOOL_ERRORS if over else None


@dataclass(frozen=True)
class Limits:
    turns: TurnLimit
    context: ContextLimit
    time: TimeLimit = TimeLimit()
    tool_errors: ToolErrorLimit = ToolErrorLimit()

    def reached(self, progress: Progress) -> StopReason | None:
        """The first limit that ends the episode."""
        limits: tuple[Limit, ...] = (self.tool_errors, self.time, self.turns, self.context)
        return next((reason for limit in limits if (reason := limit.reached(progress)) is not None), None)
