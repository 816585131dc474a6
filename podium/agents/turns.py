"""Text at the edges of an episode: the prompt, what the model wrote, and observations as tokens.

Observations are cut to a number of tokens, and their closing words stay. An answer that has a role is put into a
message of the chat template: what the template writes between the end of a turn of the model and the beginning of its
next one. The own tokens of the model are only ever decoded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from podium.agents.environment import Message, Observation
from podium.errors import ConfigError

MARK = "\u241epodium\u241e"
"""Stands where a text of ours comes in a rendered template; no template writes it."""


class TurnFormat:
    def __init__(self, tokenizer: Any, max_obs_length: int, tools: list[dict[str, Any]] | None = None) -> None:
        self.tokenizer, self.max_obs_length, self.tools = tokenizer, max_obs_length, tools
        self._frames: dict[str, tuple[str, str]] = {}

    def decode(self, token_ids: Sequence[int]) -> str:
        """What the model wrote, without the token that ends its turn."""
        text = str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))
        return text.removesuffix(self._end_of_turn())

    def encode_prompt(self, messages: list[Message]) -> list[int]:
        """A conversation, with the schemas of the tools in the template's own form, and the words that open a turn."""
        options: dict[str, Any] = {}
        if self.tools and "tools" in str(self.tokenizer.chat_template):
            options = {"tools": self.tools}
        elif self.tools:
            messages = with_tools(messages, self.tools)
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **options)
        return self._encode(str(text))

    def encode_observation(self, observation: Observation, ended_turn: bool) -> list[int]:
        """The observation's tokens, at most `max_obs_length`; `ended_turn`: the model closed its turn itself."""
        if not observation.role:
            return self._cut(observation.text, observation.closing)
        before, after = self.frame(observation.role)
        return self._cut(before if ended_turn else self._end_of_turn() + before, after, observation.text)

    def _cut(self, text: str, closing: str, middle: str = "") -> list[int]:
        """All of it when it fits; else the beginning and the closing words."""
        whole = self._encode(text + middle + closing)
        if len(whole) <= self.max_obs_length:
            return whole
        tail = self._encode(closing)
        if middle:  # the frame stays whole: a template that is cut would not be understood
            head = self._encode(text)
            room = max(0, self.max_obs_length - len(head) - len(tail))
            return [*head, *self._encode(middle)[:room], *tail]
        return [*self._encode(text)[: max(0, self.max_obs_length - len(tail))], *tail][: self.max_obs_length]

    def frame(self, role: str) -> tuple[str, str]:
        """What the template writes before and after a message, from the end of a turn to the next one."""
        if role not in self._frames:
            turns: list[Message] = [{"role": "user", "content": "u"}, {"role": "assistant", "content": MARK}]
            answered = [*turns, {"role": role, "content": MARK, "name": role}]
            try:
                text = str(self.tokenizer.apply_chat_template(answered, add_generation_prompt=True, tokenize=False))
            except TemplateError as error:
                raise ConfigError(f"the chat template has no {role} messages after an answer: {error}") from error
            _, first, rest = text.partition(MARK)
            before, second, after = rest.partition(MARK)
            if not (first and second):
                raise ConfigError(f"the chat template leaves out the content of {role} messages")
            before = before.removeprefix(self._end_of_turn())
            self._frames[role] = before, after
        return self._frames[role]

    def _end_of_turn(self) -> str:
        return str(self.tokenizer.eos_token or "")

    def _encode(self, text: str) -> list[int]:
        return [int(token) for token in self.tokenizer.encode(text, add_special_tokens=False)]


def with_tools(messages: list[Message], tools: list[dict[str, Any]]) -> list[Message]:
    """The conversation with the tools in its system message, for a template that knows no tools."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    words = (
        f"You may call tools. Each is described by one line of JSON:\n{lines}\nTo call one, write\n<tool_call>\n"
        '{"name": "...", "arguments": {...}}\n</tool_call>'
    )
    first, *rest = messages
    if first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{words}"}, *rest]
    return [{"role": "system", "content": words}, *messages]
