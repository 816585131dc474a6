"""An episode: an append-only buffer of tokens with a mask that says which of them the model wrote.

Sampled tokens go in as they were sampled and are never encoded again; an observation is encoded once, when it is
appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from podium.agents.limits import Progress
from podium.engines.rollout.base import Completion, StopReason


@dataclass
class Episode:
    prompt: list[int]
    token_ids: list[int] = field(default_factory=list)
    """The response: turns and observations."""
    info_mask: list[int] = field(default_factory=list)
    """1 where the model wrote the token."""
    log_probs: list[float] = field(default_factory=list)
    """Of the model's tokens; 0 for an observation."""
    version: int | None = None
    """The oldest weights that wrote any of the tokens."""
    num_turns: int = 0
    num_valid_actions: int = 0
    num_calls: int = 0
    """Searches or tools that were run."""
    num_errors: int = 0
    reward: float | None = None
    """None: the environment gave none."""
    stop_reason: StopReason | None = None
    error: str = ""
    """What went wrong, for `StopReason.ERROR`."""
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.progress.context_tokens = len(self.prompt) + len(self.token_ids)

    @property
    def context(self) -> list[int]:
        return [*self.prompt, *self.token_ids]

    def write(self, completion: Completion) -> None:
        """Append a turn of the model."""
        self.num_turns += 1
        self.progress.num_turns += 1
        self._append(completion.token_ids, 1, completion.log_probs)
        written_by = [completion.version] if self.version is None else [self.version, completion.version]
        self.version = min(written_by)

    def observe(self, token_ids: Sequence[int]) -> None:
        """Append what the environment answered."""
        self._append(token_ids, 0, [0.0] * len(token_ids))

    def add_reward(self, reward: float | None) -> None:
        if reward is not None:
            self.reward = (self.reward or 0.0) + float(reward)

    def _append(self, token_ids: Sequence[int], mask: int, log_probs: Sequence[float]) -> None:
        self.token_ids += token_ids
        self.info_mask += [mask] * len(token_ids)
        self.log_probs += log_probs
        self.progress.context_tokens += len(token_ids)
