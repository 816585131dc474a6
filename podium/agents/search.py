"""Search mode: the model asks a retriever between its turns, by Search-R1's protocol.

A turn ends with `</search>` or `</answer>`. The first complete `<search>` or `<answer>` decides: an answer ends the
episode, a search is answered with an `<information>` block, anything else with one hint. Nothing here knows where the
documents come from, or how tokens are cut and masked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from podium.agents.environment import EpisodeRow, Message, Observation
from podium.engines.rollout.base import StopReason
from podium.retrieval.corpus import Document

ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
STOP = ("</search>", "</answer>")
HINT = (
    "\nThat was not a valid action. To look something up, write the query between <search> and </search>. To give the "
    "final answer, write it between <answer> and </answer>. Try again.\n"
)


class Retriever(Protocol):
    async def search(self, query: str) -> list[Document]:
        """The best documents; raises RetrievalError when they cannot be had."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Action:
    kind: str
    """`search`, `answer`, or empty: neither."""
    content: str


def parse_action(text: str) -> Action:
    """The first complete action of a turn."""
    found = ACTION.search(text)
    return Action(found[1], found[2].strip()) if found else Action("", "")


def format_documents(documents: Sequence[Document]) -> str:
    return "".join(f"Doc {n}(Title: {d.title}) {d.text}\n" for n, d in enumerate(documents, start=1))


def information(documents: Sequence[Document]) -> Observation:
    """What a search is answered with."""
    text = f"\n\n<information>{format_documents(documents).strip()}"
    return Observation(text, closing="</information>\n\n", num_calls=1)


class SearchEnvironment:
    """One question: searches until it is answered."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever

    async def reset(self, row: EpisodeRow) -> list[Message] | None:
        return None

    async def step(self, text: str, tokens: Sequence[int]) -> Observation:
        action = parse_action(text)
        if action.kind == "search":
            return information(await self._retriever.search(action.content))
        return self._without_search(action)

    async def last_step(self, text: str, tokens: Sequence[int]) -> Observation:
        """The turns are used up: search is off, only an answer counts."""
        action = parse_action(text)
        return Observation() if action.kind == "search" else self._without_search(action)

    @staticmethod
    def _without_search(action: Action) -> Observation:
        if action.kind == "answer":
            return Observation(done=True, stop_reason=StopReason.ANSWERED)
        return Observation(HINT, valid=False)

    async def close(self) -> None:
        """The retriever is shared and stays."""


class SearchEnvironments:
    """Search episodes over one retriever."""

    stop: tuple[str, ...] = STOP
    scores = False
    tools: list[dict[str, Any]] | None = None

    def __init__(self, retriever: Retriever) -> None:
        self.retriever = retriever

    async def start(self) -> None:
        """The retriever opens connections as it needs them."""

    def make(self) -> SearchEnvironment:
        return SearchEnvironment(self.retriever)

    async def close(self) -> None:
        await self.retriever.close()
