"""RLHFDataset: prompts to sample from, with what their reward needs.

Rows come from files and built-in tasks and are tokenized when they are first asked for. A row keeps its `uid` for ever:
it is made of the source's name, the split and the row's number, so that no two datasets share one.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Any

import torch

from podium.config.schema import DataConfig
from podium.data.prompts import encode_prompt, fit_length, to_messages
from podium.data.sources import Row, ground_truth_of, read_rows
from podium.data.tasks import Split
from podium.errors import DataError
from podium.protocol import compute_position_ids, object_array

logger = logging.getLogger(__name__)


class RLHFDataset:
    def __init__(
        self, files: Sequence[str], tokenizer: Any, config: DataConfig, split: Split = "train", processor: Any = None
    ) -> None:
        self.tokenizer, self.config, self.processor, self.split = tokenizer, config, processor, split
        limit = config.train_data_num if split == "train" else config.val_data_num
        rows = itertools.chain.from_iterable(read_rows(file, split) for file in files)
        self._rows: list[tuple[str, Row]] = list(itertools.islice(rows, limit))
        self._cache: dict[int, dict[str, Any]] = {}
        if not self._rows:
            raise DataError(f"{', '.join(files) or 'no file'}: there is not a single {split} row")
        if config.overlong_prompts == "drop":
            self._drop_overlong()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One row: `input_ids` unpadded, the conversation, and what the reward needs."""
        if index not in self._cache:
            self._cache[index] = self._make(*self._rows[index])
        return self._cache[index]

    def data_sources(self) -> set[str]:
        return {str(row.get("data_source", "unknown")) for _, row in self._rows}

    def _messages(self, where: str, row: Row) -> list[dict[str, Any]]:
        key = self.config.prompt_key
        prompt = row.get(key, row.get("question"))
        if prompt is None:
            raise DataError(f"{where}: there is no column {key!r}; the row has {sorted(row)}. Set data.prompt_key")
        return to_messages(prompt, self.config.system_prompt, where)

    def _make(self, where: str, row: Row) -> dict[str, Any]:
        messages = self._messages(where, row)
        ids = fit_length(encode_prompt(self.tokenizer, messages, where), self.config, where)
        assert ids is not None, "overlong rows were dropped at the start"
        return {
            "input_ids": ids,
            "raw_prompt": messages,
            "uid": f"{self.split}:{where}",
            "data_source": str(row.get("data_source", "unknown")),
            "ground_truth": ground_truth_of(row),
            "reward_model": row.get("reward_model"),
            "extra_info": row.get("extra_info") or {},
        }

    def _drop_overlong(self) -> None:
        """Dropping needs the lengths of all prompts, so all are encoded now."""

        def fits(where: str, row: Row) -> bool:
            ids = encode_prompt(self.tokenizer, self._messages(where, row), where)
            return fit_length(ids, self.config, where) is not None

        kept = [(where, row) for where, row in self._rows if fits(where, row)]
        if len(kept) < len(self._rows):
            dropped = len(self._rows) - len(kept)
            logger.warning("%d %s prompts are longer than data.max_prompt_length and were dropped", dropped, self.split)
        if not kept:
            raise DataError(f"every {self.split} prompt is longer than data.max_prompt_length")
        self._rows = kept


def collate_fn(rows: list[dict[str, Any]], pad_token_id: int = 0) -> dict[str, Any]:
    """Left-padded `prompts` at the batch's own width, and the other columns as objects."""
    width = max((len(row["input_ids"]) for row in rows), default=0)
    prompts = torch.full((len(rows), width), pad_token_id, dtype=torch.long)
    attention_mask = torch.zeros_like(prompts)
    for i, row in enumerate(rows):
        start = width - len(row["input_ids"])
        prompts[i, start:] = torch.tensor(row["input_ids"], dtype=torch.long)
        attention_mask[i, start:] = 1
    keys = [key for key in (rows[0] if rows else {}) if key != "input_ids"]
    return {
        "prompts": prompts,
        "attention_mask": attention_mask,
        "position_ids": compute_position_ids(attention_mask),
        **{key: object_array([row[key] for row in rows]) for key in keys},
    }
