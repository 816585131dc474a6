"""What a raw row means: verl's columns, TRL's `prompt` with free columns, or a bare question and answer.

Columns that are not named here are kept: they join `extra_info`, where reward functions find them. Nothing is
tokenized here, and nothing is guessed: a row without a prompt is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from podium.data.prompts import PromptError, read_tools

NAMED_COLUMNS = {"data_source", "reward_model", "extra_info", "ground_truth", "question", "answer", "images", "tools"}


@dataclass(frozen=True)
class Row:
    prompt: Any
    """A string or a list of messages, not yet checked."""
    data_source: str
    reward_model: dict[str, Any]
    ground_truth: Any
    """None where the row has none: a reward model or a custom function may do without."""
    extra_info: dict[str, Any]
    tools: list[dict[str, Any]] | None = None
    """The schemas of the tools that the prompt offers."""
    agent_name: str | None = None
    """The agent loop the row asks for."""
    images: Any = None
    """The pictures of the prompt as the file holds them; None where it has none."""


class AnswerNeed(NamedTuple):
    """A reward function that compares a row's response with its answer."""

    function: str
    is_own: bool = False
    """The user's function, which may take the answer and not look at it."""

    @property
    def hint(self) -> str:
        return "; if it can do without, write ground_truth=None in its parameters" if self.is_own else ""


AnswerRule = Callable[[Row], AnswerNeed | None]
"""What compares a row's response with its answer; None where nothing does."""


def has_answer(row: Row) -> bool:
    return not _is_empty(row.ground_truth)


def _is_empty(value: Any) -> bool:
    """Nothing to compare with: null, blank text, or a list or object of nothing else."""
    if value is None:
        return True
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Mapping):
        return all(_is_empty(item) for item in value.values())
    return isinstance(value, list | tuple) and all(_is_empty(item) for item in value)


def read_row(raw: Mapping[str, Any], prompt_key: str, default_source: str) -> Row:
    """`default_source` names the data where the row does not."""
    prompt = raw.get(prompt_key)
    if prompt is None:
        prompt = raw.get("question")
    if prompt is None:
        raise PromptError(f"no prompt: neither {prompt_key!r} nor 'question' among the columns {sorted(map(str, raw))}")
    data_source = raw.get("data_source")
    if data_source is None:
        data_source = default_source
    if not isinstance(data_source, str):
        raise PromptError(f"data_source must be text, not {type(data_source).__name__}")
    reward_model = _mapping(raw, "reward_model")
    ground_truth = next(
        (
            value
            for value in (reward_model.get("ground_truth"), raw.get("ground_truth"), raw.get("answer"))
            if value is not None
        ),
        None,
    )
    reward_model = {"style": "rule"} | reward_model | {"ground_truth": ground_truth}
    free = {key: value for key, value in raw.items() if key not in NAMED_COLUMNS and key != prompt_key}
    images = raw.get("images")
    return Row(
        prompt,
        data_source,
        reward_model,
        ground_truth,
        free | _mapping(raw, "extra_info"),
        read_tools(raw.get("tools")),
        agent_name(raw),
        None if isinstance(images, list | tuple) and not images else images,
    )


def agent_name(raw: Mapping[str, Any]) -> str | None:
    """verl's name of the loop that is to run the row, without its ending `_agent`."""
    name = raw.get("agent_name")
    if name is not None and not isinstance(name, str):
        raise PromptError(f"agent_name must be text, not {type(name).__name__}")
    return name.removesuffix("_agent") if name else None


def _mapping(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = raw.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise PromptError(f"{key} must be an object, not {type(value).__name__}")
    return dict(value)
