"""From the configuration to environments: search, tools, or the user's own class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from podium.agents.environment import Environment, Environments
from podium.agents.limits import ContextLimit, Limits, TimeLimit, ToolErrorLimit, TurnLimit
from podium.agents.search import SearchEnvironments
from podium.config.schema import Config
from podium.errors import ConfigError
from podium.plugins import Signature, load_function, nearest
from podium.retrieval.client import make_retriever

METHODS = ("reset", "step", "close")


class UserEnvironments:
    """Environments of a class of the user's own."""

    tools: list[dict[str, Any]] | None = None

    def __init__(self, reference: str, kwargs: dict[str, Any], tokenizer: Any) -> None:
        self.cls = load_environment(reference)
        self.stop = tuple(getattr(self.cls, "stop", ()))
        self.scores = bool(getattr(self.cls, "scores", False))
        self._kwargs = constructor_arguments(self.cls, reference, kwargs, tokenizer)

    async def start(self) -> None:
        """What the class shares is its own."""

    def make(self) -> Environment:
        environment: Environment = self.cls(**self._kwargs)
        return environment

    async def close(self) -> None:
        """What the class shares is its own."""


def load_environment(reference: str) -> Callable[..., Any]:
    """The class that `module:Class` or `file.py:Class` names; one without the protocol's methods is a ConfigError."""
    cls = load_function(reference, "agent.environment")
    missing = [name for name in METHODS if not callable(getattr(cls, name, None))]
    if missing:
        raise ConfigError(
            f"agent.environment {reference!r} has no {', '.join(missing)}; an environment has async methods "
            f"{', '.join(METHODS)}"
        )
    return cls


def constructor_arguments(
    cls: Callable[..., Any], reference: str, kwargs: dict[str, Any], tokenizer: Any
) -> dict[str, Any]:
    """`agent.kwargs`, and the tokenizer when it is asked for."""
    takes = Signature(cls)
    unknown = [name for name in kwargs if not takes.takes_any and name not in takes.names]
    if unknown:
        raise ConfigError(f"agent.kwargs: {reference} takes no {unknown[0]!r}{nearest(unknown[0], takes.names)}")
    return takes.accepted({"tokenizer": tokenizer}) | kwargs if "tokenizer" in takes.names else dict(kwargs)


def make_environments(config: Config, tokenizer: Any) -> Environments:
    """What the configuration's episodes run in; opens the retriever or the tools."""
    if config.do_search:
        return SearchEnvironments(make_retriever(config.retriever))
    if config.agent.environment:
        return UserEnvironments(config.agent.environment, dict(config.agent.kwargs), tokenizer)
    from podium.agents.tools import make_tool_environments

    return make_tool_environments(config.agent, tokenizer)


def environment_scores(config: Config) -> bool:
    """Whether the environment's rewards replace the reward function."""
    if not config.agent.environment:
        return False
    return bool(getattr(load_environment(config.agent.environment), "scores", False))


def make_limits(config: Config, max_model_len: int | None) -> Limits:
    agent = config.agent
    return Limits(
        TurnLimit(config.max_turns),
        ContextLimit(config.data.max_prompt_length, max_model_len),
        TimeLimit(agent.max_seconds),
        ToolErrorLimit(agent.max_tool_errors),
    )
