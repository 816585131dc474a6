"""metrics.jsonl as columns, read on demand.

A long run has hundreds of megabytes of metrics and a chart needs a few columns of them. So lines are indexed once
(their place and step), names are collected from the lines that look new, and a column is picked out of the raw lines
by its name when somebody asks. All of it goes on from where it was when the file grows. It relies on what the writer
promises: a line is a flat object of numbers. A line that is no such thing is skipped.
"""

from __future__ import annotations

import json
import math
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from podium.dashboard.follow import BLOCK_BYTES, Block, GrowingFile, parse_object

PREFIX, CLOSING = b'{"step": ', ord("}")
EXACT_LINES = 1000
"""Up to here every line is parsed for its names."""
HINT_MARGIN = 256
"""Where a metric stood in the line before, less so many bytes, is where the search in the next line begins."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass
class Column:
    """The lines that have the metric, with its values (not-a-number for null)."""

    lines: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    num_lines_read: int = 0


class MetricColumns:
    def __init__(self) -> None:
        self._file = GrowingFile(is_amended=True)
        self._indexed: tuple[int, int, int] | None = None
        self._clear()

    def _clear(self) -> None:
        self.names: set[str] = set()
        self._steps = array("q")
        self._starts = array("q")
        self._ends = array("q")
        self._columns: dict[str, Column] = {}
        self._first_names: set[bytes] = set()
        self._is_sorted = True

    @property
    def num_lines(self) -> int:
        return len(self._steps)

    @property
    def last_step(self) -> int | None:
        return max(self._steps[-100:], default=None)

    def refresh(self, path: Path) -> None:
        """Index the lines that are new."""
        with path.open("rb") as file:
            self._index(file)

    def read(self, path: Path, names: Iterable[str]) -> dict[str, tuple[Ints, Floats]]:
        """Steps and values of some columns, ordered by step; the later line of a step wins."""
        wanted = list(dict.fromkeys(names))
        with path.open("rb") as file:
            self._index(file)
            self._extract(file, wanted)
        steps = np.frombuffer(self._steps.tobytes(), dtype=np.int64)
        return {name: self._curve(steps, self._columns.get(name, Column())) for name in wanted}

    def peek(self, path: Path, names: Iterable[str]) -> dict[str, tuple[Ints, Floats]] | None:
        """As `read`, but None when anything would have to be read. Safe beside a thread that reads other columns."""
        columns = {name: self._columns.get(name, Column()) for name in names}
        if not self.is_current(path) or any(
            name in self.names and column.num_lines_read < self.num_lines for name, column in columns.items()
        ):
            return None
        steps = np.frombuffer(self._steps.tobytes(), dtype=np.int64)
        return {name: self._curve(steps, column) for name, column in columns.items()}

    def is_current(self, path: Path) -> bool:
        """Whether every line of the file is indexed."""
        return self._indexed == _version(path.stat())

    def record(self, path: Path, step: int) -> dict[str, Any]:
        """Everything known of one step, its lines merged."""
        merged: dict[str, Any] = {}
        with path.open("rb") as file:
            self._index(file)
            for line in self._lines_of(step):
                start, end = self._starts[line], self._ends[line]
                merged |= parse_object(os.pread(file.fileno(), end - start, start)) or {}
        return merged

    def _lines_of(self, step: int) -> Iterable[int]:
        if self._is_sorted:
            return range(bisect_left(self._steps, step), bisect_right(self._steps, step))
        return [line for line, number in enumerate(self._steps) if number == step]

    def _curve(self, steps: Ints, column: Column) -> tuple[Ints, Floats]:
        lines = np.frombuffer(column.lines.tobytes(), dtype=np.int64)
        at, values = steps[lines], np.frombuffer(column.values.tobytes(), dtype=np.float64)
        if len(at) > 1 and not bool((np.diff(at) > 0).all()):
            order = np.argsort(at, kind="stable")
            at, values = at[order], values[order]
            last_of_step = np.append(np.diff(at) > 0, True)
            at, values = at[last_of_step], values[last_of_step]
        return at, values

    # ---- the index of lines

    def _index(self, file: BinaryIO) -> None:
        version = _version(os.fstat(file.fileno()))  # before reading: what comes meanwhile counts as new
        for block in self._file.new_blocks(file):
            if block.is_restart:
                self._clear()
            else:
                self._index_block(block)
        self._indexed = version

    def _index_block(self, block: Block) -> None:
        data, size, width, end = block.data, block.size, len(PREFIX), 0
        find, startswith = data.find, data.startswith
        while end < size:
            start, end = end, find(b"\n", end) + 1
            comma = find(b",", start, min(end, start + width + 20))
            text = data[start + width : comma]
            # The quick way is for lines as our writer makes them: the step comes first, and they are not broken off.
            is_usual = startswith(PREFIX, start) and text.isdigit() and data[end - 2] == CLOSING
            step = int(text) if is_usual else _slow_step(bytes(data[start:end]))
            if step is None:
                continue
            if self._steps and step < self._steps[-1]:
                self._is_sorted = False
            self._steps.append(step)
            self._starts.append(block.start + start)
            self._ends.append(block.start + end)
            # Names change rarely. In a long file only some lines are parsed for them, and those with a new first name.
            first_name = bytes(data[comma + 1 : find(b":", comma, end)])
            num_lines = len(self._steps)
            if num_lines <= EXACT_LINES or num_lines % 500 == 0 or first_name not in self._first_names:
                self._first_names.add(first_name)
                self.names |= set(parse_object(bytes(data[start:end])) or ()) - {"step"}

    # ---- columns out of lines

    def _extract(self, file: BinaryIO, names: list[str]) -> None:
        columns = {name: self._columns.setdefault(name, Column()) for name in names if name in self.names}
        first = min((column.num_lines_read for column in columns.values()), default=self.num_lines)
        buffer = bytearray()
        while first < self.num_lines:
            base = self._starts[first]
            last = max(first + 1, bisect_right(self._ends, base + BLOCK_BYTES))
            size = self._ends[last - 1] - base
            buffer = buffer if len(buffer) >= size else bytearray(size)
            os.preadv(file.fileno(), [memoryview(buffer)[:size]], base)
            for name, column in columns.items():
                self._extract_block(buffer, base, max(first, column.num_lines_read), last, name, column)
            first = last

    def _extract_block(self, data: bytearray, base: int, first: int, last: int, name: str, column: Column) -> None:
        if first >= last:
            return
        needle = json.dumps(name, ensure_ascii=False).encode("utf-8", "backslashreplace") + b":"
        width, hint = len(needle), 0
        find, add_line = data.find, column.lines.append
        texts: list[bytearray] = []
        numbers = range(first, last)
        for line, start, end in zip(numbers, self._starts[first:last], self._ends[first:last], strict=True):
            start, end = start - base, end - base
            at = find(needle, start + hint, end)
            if at < 0:
                at = find(needle, start, end) if hint else -1
                if at < 0:
                    continue
            hint = max(0, at - start - HINT_MARGIN)
            comma = find(b",", at + width, end)
            texts.append(data[at + width : comma] if comma >= 0 else data[at + width : end].rstrip(b"\n }"))
            add_line(line)
        column.values.extend(_numbers(texts))
        column.num_lines_read = last


def _version(info: os.stat_result) -> tuple[int, int, int]:
    return info.st_dev, info.st_ino, info.st_size


def _numbers(texts: list[bytearray]) -> list[float]:
    try:
        return list(map(float, texts))
    except ValueError:  # some are null
        return [_number(text) for text in texts]


def _number(text: bytearray) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _slow_step(line: bytes) -> int | None:
    """The step of a line that another writer made; None when it is no record."""
    record = parse_object(line)
    step = record.get("step", 0) if record is not None else None
    return step if isinstance(step, int) and abs(step) < 2**63 else None


def last_values(tail: bytes) -> dict[str, Any]:
    """The newest value of every metric in the last lines of the file, and the newest `step`."""
    values: dict[str, Any] = {}
    for line in tail.splitlines():
        values |= {name: value for name, value in (parse_object(line) or {}).items() if value is not None}
    return values
