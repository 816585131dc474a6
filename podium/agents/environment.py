"""What a model talks to between its turns: the protocol, its records, and the single-turn default.

One environment object serves one episode. Whatever is shared between episodes (a retriever, a pool of processes, a
session) lives outside and is handed in. An environment sees text and tokens and answers with text; it never sees the
engine, the weights or the loss.

    class Guess:
        async def reset(self, row):               # row.ground_truth, row.extra_info, row.prompt, ...
            return None                           # None: the prompt of the data row, as it is
        async def step(self, text, tokens):       # what the model wrote in this turn
            return Observation("higher", reward=0.0)
        async def close(self):
            ...

`agent.environment=module:Guess` runs it, `podium check env module:Guess` tries it. An environment may also have `stop`,
strings that end a turn; `scores = True`, when its rewards replace the reward function; `last_step(text, tokens)`, which
is called instead of `step` after the last turn that is allowed; and constructor arguments, which come from
`agent.kwargs` (and `tokenizer`, when it asks for one).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from podium.engines.rollout.base import StopReason

Message = dict[str, Any]


@dataclass(frozen=True)
class EpisodeRow:
    """The data row an episode is about."""

    uid: str = ""
    sample: int = 0
    """Which of the prompt's samples this is."""
    prompt: list[Message] = field(default_factory=list)
    """The conversation."""
    data_source: str = ""
    ground_truth: Any = None
    extra_info: Any = None
    validate: bool = False


@dataclass(frozen=True)
class Observation:
    """What the environment answers to a turn."""

    text: str = ""
    """What the model reads next; none of it is trained on."""
    closing: str = ""
    """The end of it, which stays when the rest is cut to `data.max_obs_length`."""
    done: bool = False
    reward: float | None = None
    """The episode's score is the sum of its rewards; when all are None the reward function scores it."""
    valid: bool = True
    """Whether the turn was an action the environment knows."""
    num_calls: int = 0
    """Searches or tools that were really run."""
    num_errors: int = 0
    """Of those, the ones that failed."""
    stop_reason: StopReason | None = None
    """Why it is done. None: `StopReason.DONE`."""
    role: str = ""
    """Put the text into a message of the chat template, of this role (user, tool), and open the model's next turn.
    Empty: the text as it is."""


class Environment(Protocol):
    async def reset(self, row: EpisodeRow) -> list[Message] | None:
        """Begin; the conversation to start from, or None for the row's own prompt."""
        ...

    async def step(self, text: str, tokens: Sequence[int]) -> Observation:
        """Answer what the model wrote in this turn."""
        ...

    async def close(self) -> None:
        """The episode is over, well or not; called once."""
        ...


class Environments(Protocol):
    """Where episodes get their environment from; holds what they share."""

    stop: tuple[str, ...]
    """Strings that end a turn."""
    scores: bool
    """Whether the environments' rewards replace the reward function."""
    tools: list[dict[str, Any]] | None
    """Schemas for the chat template's tool format."""

    async def start(self) -> None:
        """Called once, before the first episode, in the loop that episodes run in."""
        ...

    def make(self) -> Environment: ...

    async def close(self) -> None: ...


class SingleTurn:
    """The default: one turn, nothing to answer."""

    async def reset(self, row: EpisodeRow) -> list[Message] | None:
        return None

    async def step(self, text: str, tokens: Sequence[int]) -> Observation:
        return Observation(done=True)

    async def close(self) -> None:
        """Nothing to end."""


async def last_step(environment: Environment, text: str, tokens: Sequence[int]) -> Observation:
    """What the environment makes of the last turn that is allowed."""
    final = getattr(environment, "last_step", environment.step)
    observation = await final(text, tokens)
    assert isinstance(observation, Observation)
    return observation
