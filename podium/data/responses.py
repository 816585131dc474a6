"""Finished responses to learn from: examples for supervised fine-tuning, pairs for a reward model.

An example row has a prompt and a response (`response`, TRL's `completion`, a question's `answer`, a built-in task's
answer, or `messages` that end with the assistant's turn; only that turn is learned). A pair row has `chosen` and
`rejected`, as text or messages, with the prompt beside them or as their common beginning. A response ends with the
end-of-sequence token, so that the model learns to stop. Which rows come when is the sampler's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from podium.config.schema_sft import ResponseDataConfig
from podium.data.prompts import PromptError, build_messages, encode_messages, read_tools
from podium.data.quarantine import BadRow
from podium.data.rows import read_row
from podium.data.sources import RawRow, Source, open_source
from podium.data.task_pairs import TaskPairSource
from podium.data.tasks import Split, is_task_word
from podium.errors import DataError
from podium.protocol import DataProto, compute_position_ids

RESPONSE_COLUMNS = ("completion", "answer")
"""Where a response is looked for when the named column is absent."""

WRITTEN_OUT = "prompt_text"
"""A pair's prompt as text that went through the chat template already, such as dumps of samples have."""


@dataclass(frozen=True)
class Example:
    prompt: list[int]
    response: list[int]


@dataclass(frozen=True)
class Pair:
    chosen: Example
    rejected: Example
    margin: float = 0.0


class _Rows:
    """Raw rows of several sources, and what tokenizing them needs."""

    def __init__(self, files: Sequence[str], tokenizer: Any, config: ResponseDataConfig, split: Split) -> None:
        if not files:
            raise DataError(f"no {split} data: the list of files is empty")
        self.tokenizer, self.config = tokenizer, config
        self.sources = [self._open(word, split) for word in files]
        self._starts = np.cumsum([0, *(len(source) for source in self.sources)])
        self.dropped: set[int] = set()
        """Rows seen so far that are left out for their length."""

    def _open(self, word: str, split: Split) -> Source:
        return open_source(word, split)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _raw(self, row: int) -> tuple[Source, int, RawRow]:
        place = int(np.searchsorted(self._starts, row, side="right")) - 1
        number = row - int(self._starts[place])
        return self.sources[place], number, self.sources[place][number]

    def _prompt_ids(self, prompt: Any, raw: Mapping[str, Any]) -> list[int]:
        if raw.get("images"):
            raise PromptError("the row has images; this command learns from text alone")
        messages = build_messages(prompt, self.config.system_prompt)
        tools = read_tools(raw.get("tools"))
        return encode_messages(self.tokenizer, messages, tools, self.config.apply_chat_template_kwargs)

    def _text_ids(self, text: str) -> list[int]:
        return [int(token) for token in self.tokenizer.encode(text, add_special_tokens=False)]

    def _response_ids(self, text: str) -> list[int]:
        return [*self._text_ids(text), int(self.tokenizer.eos_token_id)]

    def _fit(self, example: Example) -> Example | None:
        """The example within `data.max_length`; None: leave its row out."""
        limit, size = self.config.max_length, len(example.prompt) + len(example.response)
        if size <= limit:
            return example
        if self.config.overlong == "truncate_right" and len(example.prompt) < limit:
            return replace(example, response=example.response[: limit - len(example.prompt)])
        if self.config.overlong == "error":
            raise PromptError(
                f"prompt and response have {size} tokens, data.max_length is {limit}; raise it or set data.overlong "
                f"to drop or truncate_right"
            )
        return None


class ExampleRows(_Rows):
    """Rows for supervised fine-tuning."""

    def fetch(self, rows: Sequence[int]) -> DataProto:
        """These rows as a batch, those that are too long left out."""
        examples = {row: self.example(row) for row in rows}
        self.dropped |= {row for row, example in examples.items() if example is None}
        return make_batch([example for example in examples.values() if example is not None], self.tokenizer)

    def example(self, row: int) -> Example | None:
        source, number, raw = self._raw(row)
        try:
            prompt, response = self._read(raw)
            return self._fit(Example(self._prompt_ids(prompt, raw), self._response_ids(response)))
        except PromptError as error:
            raise BadRow(source.name, source.number(number), str(error)) from error

    def _read(self, raw: Mapping[str, Any]) -> tuple[Any, str]:
        if isinstance(raw.get("messages"), Sequence) and raw.get(self.config.prompt_key) is None:
            return split_conversation(raw["messages"], "messages")
        row = read_row(raw, self.config.prompt_key, "")
        candidates = [raw.get(self.config.response_key), *(raw.get(name) for name in RESPONSE_COLUMNS)]
        response = next((value for value in [*candidates, row.extra_info.get("answer")] if value is not None), None)
        if response is None:
            names = ", ".join([self.config.response_key, *RESPONSE_COLUMNS])
            raise PromptError(f"no response: none of {names} among the columns {sorted(map(str, raw))}")
        return row.prompt, response_text(response)


class PairRows(_Rows):
    """Rows for a reward model; a built-in task makes pairs of right and wrong answers."""

    def _open(self, word: str, split: Split) -> Source:
        return TaskPairSource(word, split) if is_task_word(word) else open_source(word, split)

    def fetch(self, rows: Sequence[int]) -> DataProto:
        """Two rows per pair, the chosen one first; `unit` numbers the pairs, `is_chosen` and `margin` describe them."""
        pairs = {row: self.pair(row) for row in rows}
        self.dropped |= {row for row, pair in pairs.items() if pair is None}
        kept = [pair for pair in pairs.values() if pair is not None]
        batch = make_batch([side for pair in kept for side in (pair.chosen, pair.rejected)], self.tokenizer)
        return batch.put(
            unit=torch.arange(len(kept)).repeat_interleave(2),
            is_chosen=torch.tensor([True, False] * len(kept)),
            margin=torch.tensor([pair.margin for pair in kept], dtype=torch.float32).repeat_interleave(2),
        )

    def pair(self, row: int) -> Pair | None:
        source, number, raw = self._raw(row)
        try:
            prompt, chosen, rejected = read_pair(raw, self.config.prompt_key)
            ids = self._text_ids(prompt) if is_written_out(raw) else self._prompt_ids(prompt, raw)
            sides = [self._fit(Example(ids, self._response_ids(text))) for text in (chosen, rejected)]
            margin = float(raw.get("margin") or 0.0)
        except (PromptError, TypeError, ValueError) as error:
            raise BadRow(source.name, source.number(number), str(error)) from error
        return None if sides[0] is None or sides[1] is None else Pair(sides[0], sides[1], margin)


def is_written_out(raw: Mapping[str, Any]) -> bool:
    """Whether the row has its prompt as the model reads it, template and all."""
    return isinstance(raw.get(WRITTEN_OUT), str)


def read_pair(raw: Mapping[str, Any], prompt_key: str) -> tuple[Any, str, str]:
    """Prompt, chosen and rejected text of a row."""
    missing = [name for name in ("chosen", "rejected") if raw.get(name) is None]
    if missing:
        raise PromptError(f"no {' and no '.join(missing)} among the columns {sorted(map(str, raw))}")
    if is_written_out(raw):
        return raw[WRITTEN_OUT], response_text(raw["chosen"]), response_text(raw["rejected"])
    if raw.get(prompt_key) is not None:
        return raw[prompt_key], response_text(raw["chosen"]), response_text(raw["rejected"])
    prompt, chosen = split_conversation(raw["chosen"], "chosen")
    other_prompt, rejected = split_conversation(raw["rejected"], "rejected")
    if prompt != other_prompt:
        raise PromptError("chosen and rejected begin with different conversations; a pair answers one prompt")
    return prompt, chosen, rejected


def split_conversation(messages: Any, name: str) -> tuple[list[dict[str, Any]], str]:
    """The conversation before the assistant's last turn, and that turn's text."""
    if isinstance(messages, str):
        raise PromptError(f"{name} is plain text and the row has no prompt; give the prompt a column of its own")
    turns = build_messages(messages)
    if len(turns) < 2 or turns[-1]["role"] != "assistant":
        raise PromptError(f"{name} must be a conversation that ends with an assistant message")
    return turns[:-1], str(turns[-1]["content"])


def response_text(value: Any) -> str:
    """A response as text: itself, or the content of its only message."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and len(value) == 1 and isinstance(value[0], Mapping):
        return str(value[0].get("content", ""))
    raise PromptError(f"a response must be text or one assistant message, not {type(value).__name__}")


def make_batch(examples: Sequence[Example], tokenizer: Any) -> DataProto:
    """The columns a train engine reads: prompts padded on the left, responses on the right."""
    left = max((len(example.prompt) for example in examples), default=0)
    right = max((len(example.response) for example in examples), default=0)
    ids = torch.full((len(examples), left + right), tokenizer.pad_token_id or 0, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, example in enumerate(examples):
        start, end = left - len(example.prompt), left + len(example.response)
        ids[number, start:end] = torch.tensor(example.prompt + example.response)
        mask[number, start:end] = 1
    columns = {
        "prompts": ids[:, :left],
        "responses": ids[:, left:],
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": compute_position_ids(mask),
        "response_mask": mask[:, left:],
    }
    return DataProto.from_dict(columns)
