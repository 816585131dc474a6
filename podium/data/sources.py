"""Rows from what a config names: built-in tasks, parquet files, jsonl files; in verl's, TRL's or a bare shape.

`read_rows` gives each row as verl has it. What a row means is not decided here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyarrow import parquet

from podium.data.tasks import Split, is_task_word, parse_task_word
from podium.errors import DataError

Row = dict[str, Any]


def read_rows(source: str, split: Split) -> Iterator[tuple[str, Row]]:
    """Each row with words that say where it stands."""
    if is_task_word(source):
        for i, row in enumerate(parse_task_word(source).make_rows(split)):
            yield f"{source}, row {i}", row
        return
    path = Path(source)
    if not path.is_file():
        raise DataError(f"there is no data file {source}")
    readers = {".parquet": _read_parquet, ".jsonl": _read_jsonl, ".json": _read_jsonl}
    if path.suffix not in readers:
        raise DataError(f"{source}: unknown kind of file {path.suffix!r}; allowed are {', '.join(readers)}")
    yield from readers[path.suffix](path)


def _read_parquet(path: Path) -> Iterator[tuple[str, Row]]:
    try:
        table = parquet.read_table(path, memory_map=True)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is no readable parquet file: {error}") from error
    for i in range(table.num_rows):
        yield f"{path}, row {i}", table.slice(i, 1).to_pylist()[0]


def _read_jsonl(path: Path) -> Iterator[tuple[str, Row]]:
    with path.open(encoding="utf-8") as lines:
        for i, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{path}, line {i + 1}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise DataError(f"{path}, line {i + 1}: a row must be an object, not {type(row).__name__}")
            yield f"{path}, line {i + 1}", row


def ground_truth_of(row: Row) -> Any:
    """verl's `reward_model.ground_truth`, or a column `ground_truth`, `answer` or `solution`; else None."""
    reward_model = row.get("reward_model")
    if isinstance(reward_model, dict) and "ground_truth" in reward_model:
        return reward_model["ground_truth"]
    return next((row[key] for key in ("ground_truth", "answer", "solution") if row.get(key) is not None), None)
