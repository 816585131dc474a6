"""RLHFDataset: rows of files and built-in tasks as prompts, and `collate_fn`, which makes a batch of them.

A prompt is tokenized when its row is asked for: a start does not take longer with more rows. A row that cannot be used
raises `BadRow` with file, row and reason; `fetch` notes it in the quarantine and takes another row instead. The
order of rows is the sampler's business, and no reward is computed here.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from podium.config.schema import DataConfig
from podium.config.schema_sft import ResponseDataConfig
from podium.data.agent_names import AgentLoop
from podium.data.images import Arrays, encode_with_images, image_key, load_images
from podium.data.places import place_words
from podium.data.prompts import PromptError, build_messages, encode_messages, fit_prompt, is_overlong
from podium.data.quarantine import BadRow, OverlongRow, Quarantine
from podium.data.rows import AnswerRule, Row, has_answer, read_row
from podium.data.sampler import permutation
from podium.data.sources import Source, open_source
from podium.data.tasks import Split, is_task_word
from podium.errors import DataError
from podium.protocol import compute_position_ids, object_array

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOOK_AHEAD_ROWS = 2_000
"""Rows that are looked at before training starts; more would make a start longer with a longer file."""

NO_ANSWER = "no answer in reward_model.ground_truth, ground_truth or answer"

Batch = dict[str, torch.Tensor | NDArray[np.object_]]


class RLHFDataset:
    """Prompts of one split. `dataset[i]` is a dict; `dataset.collate_fn` makes a batch of several."""

    def __init__(
        self,
        files: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        config: DataConfig,
        split: Split = "train",
        processor: object | None = None,
        quarantine: Path | None = None,
    ) -> None:
        """`quarantine`: the file that takes rows which cannot be used."""
        if not files:
            raise DataError(f"no {split} data: the list of files is empty")
        self.tokenizer, self.config, self.split, self.processor = tokenizer, config, split, processor
        self._sources: list[Source] = [open_source(word, split, config.cache_dir) for word in files]
        self._ids = [_source_id(split, place, word) for place, word in enumerate(files)]
        self._starts = np.cumsum([0, *(len(source) for source in self._sources)])
        self._rows = self._choose_rows()
        self.agent: AgentLoop | None = None
        """What runs the rows, where it is known: a row that names another is an error."""
        self._answers: AnswerRule | None = None
        self._unanswered: set[int] = set()
        self._truncated: set[int] = set()
        self._dropped: set[tuple[int, int]] = set()
        self.quarantine = Quarantine(quarantine, config.max_bad_rows)
        if config.overlong_prompts == "drop" and len(self._rows) <= LOOK_AHEAD_ROWS:
            self._keep(self._fits)

    @property
    def num_dropped(self) -> int:
        """Different rows left out so far because their prompt is too long."""
        return len(self._dropped)

    @property
    def source_starts(self) -> list[int]:
        """Where each source begins among the rows of this dataset; the number of rows at the end."""
        return [int(place) for place in np.searchsorted(self._rows, self._starts)]

    def uid(self, index: int) -> str:
        """The id of a row, without reading it."""
        place, row_number = self._locate(int(self._rows[index]))
        return f"{self._ids[place]}-{row_number}"

    def place_of(self, uid: str) -> str | None:
        """File and line (or row) of the row with this id; None for an id of somewhere else."""
        source_id, _, row_number = uid.rpartition("-")
        if source_id not in self._ids or not row_number.isdecimal():
            return None
        return self._place(self._ids.index(source_id), int(row_number))

    def expect_answers(self, rule: AnswerRule) -> list[str]:
        """From here on a row is bad that has no answer where the `rule` says it is compared with one.

        A function of the user's own may take `ground_truth` and not look at it: a file that has no answer at all in
        its first rows is taken as it is. What to tell about such files comes back.
        """
        self._answers = rule
        for place, source in enumerate(self._sources):
            if not is_task_word(source.name) and self._has_no_answers(place, rule):
                self._unanswered.add(place)
        names = [self._sources[place].name for place in sorted(self._unanswered)]
        return [f"{name}: {NO_ANSWER} of any row; the reward function gets ground_truth=None" for name in names]

    def _has_no_answers(self, place: int, rule: AnswerRule) -> bool:
        """Whether the user's own function is all that asks, and none of the first rows has an answer."""
        asked, source = False, self._sources[place]
        for row_number in range(min(len(source), LOOK_AHEAD_ROWS)):
            try:
                row = read_row(source[row_number], self.config.prompt_key, default_source=Path(source.name).stem)
            except DataError:
                continue
            need = rule(row)
            if has_answer(row) or (need is not None and not need.is_own):
                return False
            asked = asked or need is not None
        return asked

    def check_rows(self) -> None:
        """Quarantine the bad ones among the first rows of files; what comes behind is checked when it is drawn."""
        files = [place for place, source in enumerate(self._sources) if not is_task_word(source.name)]
        if files and len(self._rows):
            self._keep(self._is_sound, LOOK_AHEAD_ROWS)

    def fetch(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """These rows; in the place of one that cannot be used, the next one after it that can, the same every time."""
        taken = set(rows)
        return [self._fetch_one(row, taken) for row in rows]

    @property
    def num_truncated(self) -> int:
        """Different rows seen so far whose prompt was cut."""
        return len(self._truncated)

    @property
    def collate_fn(self) -> Callable[[Sequence[dict[str, Any]]], Batch]:
        """The module's `collate_fn` with this tokenizer's padding token."""
        return functools.partial(collate_fn, pad_token_id=_pad_token_id(self.tokenizer))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of a dataset with {len(self)} rows")
        place, row_number = self._locate(int(self._rows[index]))
        row, raw_prompt, tokens, images = self._read(place, row_number)
        limit = self.config.prompt_limit
        if is_overlong(tokens, limit):
            self._truncated.add(int(self._rows[index]))
        try:
            policy = self.config.overlong_prompts
            input_ids = fit_prompt(tokens, limit, "drop" if images and policy == "truncate_left" else policy)
        except PromptError as error:
            raise DataError(f"{self._place(place, row_number)}: {error}") from error
        if input_ids is None:
            self._dropped.add((place, row_number))
            raise OverlongRow(*self._name(place, row_number), f"the prompt has {len(tokens)} tokens")
        return {
            "input_ids": input_ids,
            "raw_prompt": raw_prompt,
            "is_conversation": not isinstance(row.prompt, str),
            "data_source": row.data_source,
            "reward_model": row.reward_model,
            "ground_truth": row.ground_truth,
            "extra_info": row.extra_info,
            "uid": self.uid(index),
            **({} if self.processor is None else {"multi_modal_inputs": images}),
        }

    def _read(self, place: int, row_number: int) -> tuple[Row, list[dict[str, Any]], list[int], Arrays | None]:
        """A row, its conversation, all its prompt tokens, and the arrays of its images."""
        row, messages = self._parse(place, row_number)
        options = self.config.apply_chat_template_kwargs
        try:
            if row.images is None:
                return row, messages, encode_messages(self.tokenizer, messages, row.tools, options), None
            pictures = load_images(row.images)
            return row, messages, *encode_with_images(self.processor, messages, pictures, row.tools, options)
        except PromptError as error:
            raise BadRow(*self._name(place, row_number), str(error)) from error

    def _parse(self, place: int, row_number: int) -> tuple[Row, list[dict[str, Any]]]:
        source = self._sources[place]
        raw = source[row_number]
        try:
            row = read_row(raw, self.config.prompt_key, default_source=Path(source.name).stem)
            if row.images is not None and self.processor is None:
                raise PromptError("the row has images and the model has no processor for them; use a vision model")
            if row.agent_name and self.agent is not None:
                self.agent.check(row.agent_name, self._place(place, row_number))
            if place not in self._unanswered and (lack := self._missing_answer(row)):
                raise PromptError(lack)
            return row, build_messages(row.prompt, self.config.system_prompt)
        except PromptError as error:
            raise BadRow(*self._name(place, row_number), str(error)) from error

    def _missing_answer(self, row: Row) -> str:
        need = self._answers(row) if self._answers is not None and not has_answer(row) else None
        return "" if need is None else f"{NO_ANSWER}, and {need.function} compares with it{need.hint}"

    def _fetch_one(self, row: int, taken: set[int]) -> dict[str, Any]:
        for candidate in (number % len(self) for number in range(row, row + len(self))):
            if candidate != row and candidate in taken:
                continue
            try:
                found = self[candidate]
            except OverlongRow:
                continue
            except BadRow as bad:
                self.quarantine.add(bad)
            else:
                taken.add(candidate)
                return found
        raise DataError(f"none of the {len(self)} {self.split} rows can be used")

    def _keep(self, wanted: Callable[[int, int], bool], limit: int | None = None) -> None:
        """Of the first `limit` rows only the wanted ones; bad ones go to the quarantine."""
        head, tail = self._rows[:limit], self._rows[len(self._rows[:limit]) :]
        keep, found = np.ones(len(head), dtype=bool), list[BadRow]()
        for number, position in enumerate(head):
            try:
                keep[number] = wanted(*self._locate(int(position)))
            except BadRow as bad:
                found.append(bad)
                keep[number] = False
        self.quarantine.add(*found)
        self._rows = np.concatenate([head[keep], tail])
        if not len(self._rows):
            limit_words = f"{self.num_dropped} {self.split} prompts have more than {self.config.prompt_limit} tokens"
            raise DataError(f"all {limit_words}" if self.num_dropped else f"no {self.split} row can be used")

    def _is_sound(self, place: int, row_number: int) -> bool:
        if not is_task_word(self._sources[place].name):
            self._parse(place, row_number)
        return True

    def _fits(self, place: int, row_number: int) -> bool:
        fits = not is_overlong(self._read(place, row_number)[2], self.config.prompt_limit)
        if not fits:
            self._dropped.add((place, row_number))
        return fits

    def _name(self, place: int, row_number: int) -> tuple[str, int]:
        """A row as people are told of it: its file, and its number there (places.py)."""
        source = self._sources[place]
        return source.name, source.number(row_number)

    def _place(self, place: int, row_number: int) -> str:
        return place_words(*self._name(place, row_number))

    def _locate(self, position: int) -> tuple[int, int]:
        """The source and the row in it of a position in all sources together."""
        place = int(np.searchsorted(self._starts, position, side="right")) - 1
        return place, position - int(self._starts[place])

    def _choose_rows(self) -> NDArray[np.int64]:
        """All positions, or a fixed random choice of `train_data_num` or `val_data_num` of them, in file order."""
        total = int(self._starts[-1])
        wanted = self.config.train_data_num if self.split == "train" else self.config.val_data_num
        if wanted is None or wanted >= total:
            return np.arange(total)
        if wanted < 1:
            raise DataError(f"data.{self.split}_data_num is {wanted}; it must be at least 1, or null for all rows")
        return np.sort(permutation(total, seed=0, epoch=0)[:wanted])


def collate_fn(rows: Sequence[dict[str, Any]], pad_token_id: int = 0) -> Batch:
    """Rows of a dataset as one dict for `DataProto.from_single_dict`.

    `input_ids` and `prompts` (the same tensor), `attention_mask`, `position_ids`: [batch, longest prompt], padded on
    the left. Every other key becomes an array of objects.
    """
    width = max((len(row["input_ids"]) for row in rows), default=0)
    input_ids = torch.full((len(rows), width), pad_token_id, dtype=torch.long)
    attention_mask = torch.zeros((len(rows), width), dtype=torch.long)
    for index, row in enumerate(rows):
        start = width - len(row["input_ids"])
        input_ids[index, start:] = torch.tensor(row["input_ids"], dtype=torch.long)
        attention_mask[index, start:] = 1
    batch: Batch = {
        "prompts": input_ids,
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "position_ids": compute_position_ids(attention_mask),
    }
    for key in rows[0] if rows else ():
        if key != "input_ids":
            batch[key] = object_array([row[key] for row in rows])
    if rows and "multi_modal_inputs" in rows[0]:
        batch["image_key"] = torch.tensor([image_key(row["multi_modal_inputs"]) for row in rows], dtype=torch.long)
    return batch


def validation_files(config: DataConfig | ResponseDataConfig) -> list[str]:
    """`data.val_files`, or else the validation split of the built-in tasks trained on, at its default size."""
    if config.val_files:
        return list(config.val_files)
    return [_without_rows(word) for word in config.train_files if is_task_word(word)]


def _without_rows(word: str) -> str:
    name, _, query = word.partition("?")
    kept = [pair for pair in query.split("&") if pair and not pair.startswith("rows=")]
    return f"{name}?{'&'.join(kept)}" if kept else name


def _source_id(split: Split, place: int, word: str) -> str:
    """Differs between splits, between files, and between two mentions of one file; a file's folder does not count, so
    that a run gives the same samples on a machine where the data lies elsewhere."""
    name = word if is_task_word(word) else Path(word).name
    return hashlib.sha256(f"{split}|{place}|{name}".encode()).hexdigest()[:12]


def _pad_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The padding token, or the end token where there is none; padding never reaches a model."""
    token = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return token if isinstance(token, int) else 0
