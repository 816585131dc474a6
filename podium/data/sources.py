"""Where raw rows come from: built-in tasks, parquet files, jsonl files, folders of the `datasets` library.

A source has a length and gives one raw row at a time; a new format is a new class here and nothing else. Rows are
handed on as they were read: what they mean is decided in rows.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from podium.data.arrow import ArrowRows, open_datasets_folder, open_parquet
from podium.data.quarantine import BadRow
from podium.data.tasks import Split, is_task_word, parse_task_word
from podium.errors import DataError

RawRow = dict[str, Any]


class Source(Protocol):
    name: str
    """What the config called it; part of error messages and of row ids."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> RawRow: ...

    def number(self, row: int) -> int:
        """What to call the row: its number in the file, from 1; of a text file the line (places.py)."""


def open_source(word: str, split: Split, cache_dir: str = "") -> Source:
    """The source a word of `data.train_files` or `data.val_files` asks for."""
    if is_task_word(word):
        return TaskSource(word, split)
    path = Path(word).expanduser()
    if path.is_dir():
        return ArrowSource(word, lambda: open_datasets_folder(path, split))
    readers: dict[str, Callable[[str, Path], Source]] = {
        ".parquet": lambda word, path: ArrowSource(word, lambda: open_parquet(path, cache_dir)),
        ".jsonl": JsonlSource,
    }
    if path.suffix not in readers:
        raise DataError(
            f"{word!r} is neither task:<name>, nor a file that ends in {' or '.join(readers)}, nor a folder here; "
            "nothing is downloaded, so save a data set of a hub as a file or with save_to_disk first"
        )
    if not path.is_file():
        raise DataError(f"the data file {word!r} does not exist (looked for {path.absolute()})")
    source = readers[path.suffix](word, path)
    if not len(source):
        raise DataError(f"the data file {word!r} has no rows")
    return source


class TaskSource:
    """The rows a built-in task makes."""

    def __init__(self, word: str, split: Split) -> None:
        self.name = word
        self._rows = parse_task_word(word).make_rows(split)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> RawRow:
        return self._rows[row]

    def number(self, row: int) -> int:
        return row + 1


class ArrowSource:
    """Arrow rows; only the row asked for becomes Python objects."""

    def __init__(self, word: str, open_rows: Callable[[], ArrowRows]) -> None:
        self.name = word
        try:
            self._rows = open_rows()
        except DataError:
            raise
        except (ValueError, OSError) as error:  # Arrow's errors are of these kinds
            raise DataError(f"{word!r} cannot be read as {_kind(word)}: {error}") from error

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> RawRow:
        return self._rows[row]

    def number(self, row: int) -> int:
        return row + 1


def _kind(word: str) -> str:
    return "parquet" if word.endswith(".parquet") else "a folder of the datasets library"


class JsonlSource:
    """A file with one JSON object a line; lines are found once and parsed when asked for. Blank lines do not count."""

    def __init__(self, word: str, path: Path) -> None:
        self.name = word
        self._path = path
        starts, blanks, at = [], [], 0
        with path.open("rb") as lines:
            for line in lines:
                if line.strip():
                    starts.append(at)
                else:
                    blanks.append(len(starts))
                at += len(line)
        self._starts = np.array(starts, dtype=np.int64)
        self._rows_before_blank = np.array(blanks, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, row: int) -> RawRow:
        with self._path.open("rb") as lines:
            lines.seek(int(self._starts[row]))
            line = lines.readline().rstrip()  # a fault is at a column of this line, not of the next
        try:
            value = json.loads(line)
        except ValueError as error:  # bad JSON or bad UTF-8
            raise BadRow(self.name, self.number(row), f"not valid JSON ({json_fault(error)})") from error
        if not isinstance(value, dict):
            reason = f"a JSON object was expected, found {type(value).__name__}"
            raise BadRow(self.name, self.number(row), reason)
        return value

    def number(self, row: int) -> int:
        return row + 1 + int(np.searchsorted(self._rows_before_blank, row, side="right"))


def json_fault(error: ValueError) -> str:
    """What is wrong with a line of JSON; Python would call every line of a jsonl file line 1."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg[:1].lower()}{error.msg[1:]} at column {error.colno}"
    return str(error)
