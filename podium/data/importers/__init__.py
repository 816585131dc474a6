"""Importers: public data sets, from local copies, as rows of ours. `podium data <name> ...` writes them to parquet.

Nothing is downloaded. An importer is a function from options to rows; a new one is a new entry here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from podium.data.importers.pairs import pairs
from podium.data.importers.public import gsm8k, jsonl, math, nq_search
from podium.data.importers.reasoning_gym import reasoning_gym
from podium.data.places import place_words
from podium.data.prompts import PromptError
from podium.data.sources import json_fault
from podium.errors import ConfigError, DataError
from podium.plugins import nearest

Row = dict[str, Any]
FILE_IMPORTERS: dict[str, Callable[[Iterable[Row], str], Iterator[Row]]] = {
    "gsm8k": gsm8k,
    "math": math,
    "nq_search": nq_search,
    "jsonl": jsonl,
    "pairs": pairs,
}
GYM = "reasoning_gym:"


def import_rows(name: str, files: list[str], split: str, size: int = 1000, seed: int = 0) -> Iterator[Row]:
    """The rows of a data set. `size` and `seed` are for tasks that make their own."""
    if name.startswith(GYM):
        return reasoning_gym(name.removeprefix(GYM), split, size, seed)
    if name not in FILE_IMPORTERS:
        known = [*FILE_IMPORTERS, f"{GYM}<task>"]
        raise ConfigError(f"podium data: there is no importer {name!r}{nearest(name, known)}")
    if not files:
        raise ConfigError(f"podium data {name}: name the local files to read")
    raw = RawRows(files)
    return _placed(FILE_IMPORTERS[name](raw, split), raw)


class RawRows:
    """The rows of files, and where the newest of them stands."""

    def __init__(self, files: Iterable[str]) -> None:
        self._files = list(files)
        self.place = ""

    def __iter__(self) -> Iterator[Row]:
        for place, row in _read_files(self._files):
            self.place = place
            yield row


def _placed(rows: Iterator[Row], raw: RawRows) -> Iterator[Row]:
    """The rows; what is wrong with one is told with its place."""
    try:
        yield from rows
    except PromptError as error:
        raise DataError(f"{raw.place}: {error}") from error


def _read_files(files: Iterable[str]) -> Iterator[tuple[str, Row]]:
    """Raw rows of local parquet, json and jsonl files, each with its place."""
    for word in files:
        path = Path(word).expanduser()
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix in (".jsonl", ".json", ".parquet"))
            if not inside:
                raise DataError(f"{word!r} holds no .jsonl, .json or .parquet file")
            yield from _read_files(str(p) for p in inside)
        elif not path.is_file():
            raise DataError(f"there is no file {word!r}")
        elif path.suffix == ".parquet":
            from podium.data.arrow import open_parquet

            rows = open_parquet(path, "")
            yield from ((place_words(str(path), row + 1), rows[row]) for row in range(len(rows)))
        else:
            yield from _read_json(path)


def _read_json(path: Path) -> Iterator[tuple[str, Row]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".json":
        yield from _read_lines(path, text)
        return
    try:
        whole = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON: {error}") from error
    for number, value in enumerate(whole if isinstance(whole, list) else [whole], 1):
        place = f"{path}, item {number}"
        yield place, _object(value, place)


def _read_lines(path: Path, text: str) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            place = place_words(str(path), number)
            try:
                value = json.loads(line)
            except ValueError as error:
                raise DataError(f"{place}: not valid JSON ({json_fault(error)})") from error
            yield place, _object(value, place)


def _object(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{place}: a JSON object was expected, found {type(value).__name__}")
    return value


def write_rows(rows: Iterable[Row], target: Path) -> int:
    """Write a parquet file, whole or not at all; how many rows it has."""
    import pyarrow.parquet
    from pyarrow.lib import Table

    table = Table.from_pylist(list(rows))
    if not table.num_rows:
        raise DataError("the files hold no rows")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    try:
        pyarrow.parquet.write_table(table, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return int(table.num_rows)
