"""RowsDataset: rows a Python program holds (`datasets.Dataset`, a list of dicts) in the place of a data file.

A row has `input_ids` (tokens, taken as they are), or what a data file has: a `prompt` (text or messages) or `question`
and any other columns, which reach the reward functions. Nothing is copied and nothing tokenized before a row is drawn.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from podium.data.dataset import Batch, collate_fn
from podium.data.prompts import PromptError, build_messages, encode_messages, fit_prompt
from podium.data.rows import Row, read_row
from podium.errors import DataError

TOKEN_COLUMNS = ("input_ids", "attention_mask", "lengths", "labels", "token_type_ids")


class RowsDataset:
    """What the trainer asks of a dataset: `len`, `fetch`, `collate_fn`."""

    def __init__(
        self, rows: Any, tokenizer: Any, max_prompt_length: int, name: str, options: Mapping[str, Any] | None = None
    ) -> None:
        """`options`: further arguments of the chat template."""
        if isinstance(rows, Mapping):
            raise DataError(f"{name}_dataset is a dict of {', '.join(map(str, rows))}; give one dataset")
        if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
            raise DataError(
                f"{name}_dataset is a {type(rows).__name__}; give a datasets.Dataset or a list of dicts, whose length "
                "is known (an IterableDataset: `list(dataset.take(n))`)"
            )
        if len(rows) == 0:
            raise DataError(f"{name}_dataset has no rows")
        self.rows, self.tokenizer, self.max_prompt_length, self.name = rows, tokenizer, max_prompt_length, name
        self.options = options
        self[0]  # a mistake in the columns is found now

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return [self[number] for number in numbers]

    def place_of(self, uid: str) -> str | None:
        """The row with this id as the program would write it."""
        name, _, number = uid.rpartition("-")
        return f"{self.name}_dataset[{number}]" if name == self.name and number.isdecimal() else None

    @property
    def collate_fn(self) -> Callable[[Sequence[dict[str, Any]]], Batch]:
        return functools.partial(collate_fn, pad_token_id=self.tokenizer.pad_token_id)

    def __getitem__(self, number: int) -> dict[str, Any]:
        raw = self.rows[int(number)]
        if not isinstance(raw, Mapping):
            raise DataError(f"{self.name}_dataset[{number}]: a row must be a dict, not {type(raw).__name__}")
        try:
            row, raw_prompt, tokens = self._read(raw)
        except PromptError as error:
            raise DataError(f"{self.name}_dataset[{number}]: {error}") from error
        if not tokens:
            raise DataError(f"{self.name}_dataset[{number}]: the prompt has no tokens")
        return {
            "input_ids": fit_prompt(tokens, self.max_prompt_length, "truncate_left"),
            "raw_prompt": raw_prompt,
            "is_conversation": not isinstance(row.prompt, str),
            "data_source": row.data_source,
            "reward_model": row.reward_model,
            "ground_truth": row.ground_truth,
            "extra_info": row.extra_info,
            "uid": f"{self.name}-{number}",
        }

    def _read(self, raw: Mapping[str, Any]) -> tuple[Row, Any, list[int]]:
        if "input_ids" not in raw:
            row = read_row(raw, "prompt", default_source=self.name)
            messages = build_messages(row.prompt)
            # As a row with is_conversation=False: the reward function gets the text that the row has.
            if row.images is not None:
                raise PromptError("the row has images; train a vision model from data files with podium train")
            return row, messages, encode_messages(self.tokenizer, messages, row.tools, self.options)
        tokens = [int(token) for token in raw["input_ids"]]
        if (mask := raw.get("attention_mask")) is not None:
            tokens = [token for token, real in zip(tokens, mask, strict=True) if real]
        text = str(self.tokenizer.decode(tokens))
        columns = {key: value for key, value in raw.items() if key not in TOKEN_COLUMNS}
        row = read_row({"prompt": text} | columns, "prompt", default_source=self.name)
        return row, [{"role": "user", "content": row.prompt if isinstance(row.prompt, str) else text}], tokens
