"""metrics.jsonl as columns, read on demand.

A long run has hundreds of megabytes of metrics and a chart needs a few columns of them. So lines are indexed once
(their place and step), names are collected from the lines that look new, and a column is picked out of the raw lines
by its name when somebody asks. All of it goes on from where it was when the file grows. It relies on what the writer
promises: a line is a flat object of numbers. A line that is no such thing is skipped.
"""

from __future__ import annotations

import json
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

PREFIX = b'{"step": '
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
        self._file = GrowingFile()
        self._clear()

    def _clear(self) -> None:
        self.names: set[str] = set()
        self._steps = array("q")
        self._starts = array("q")
        self._ends = array("q")
        self._columns: dict[str, Column] = {}
        self._shapes: set[tuple[int, bytes]] = set()
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
        for block in self._file.new_blocks(file):
            if block.is_restart:
                self._clear()
            else:
                self._index_block(block)

    def _index_block(self, block: Block) -> None:
        position = block.start
        for line in block.data.split(b"\n")[:-1]:
            start, position = position, position + len(line) + 1
            step = _step_of(line)
            if step is None:
                continue
            if self._steps and step < self._steps[-1]:
                self._is_sorted = False
            self._steps.append(step)
            self._starts.append(start)
            self._ends.append(position)
            # Lines with the same first metric and the same number of names have, in practice, the same names.
            shape = (line.count(b'"'), line[: line.find(b":", len(PREFIX))].partition(b",")[2])
            if shape not in self._shapes or len(self._steps) % 500 == 1:
                self._shapes.add(shape)
                self.names |= set(parse_object(line) or ()) - {"step"}

    # ---- columns out of lines

    def _extract(self, file: BinaryIO, names: list[str]) -> None:
        columns = {name: self._columns.setdefault(name, Column()) for name in names if name in self.names}
        first = min((column.num_lines_read for column in columns.values()), default=self.num_lines)
        while first < self.num_lines:
            base = self._starts[first]
            last = max(first + 1, bisect_right(self._ends, base + BLOCK_BYTES))
            data = os.pread(file.fileno(), self._ends[last - 1] - base, base)
            for name, column in columns.items():
                self._extract_block(data, base, max(first, column.num_lines_read), last, name, column)
            first = last

    def _extract_block(self, data: bytes, base: int, first: int, last: int, name: str, column: Column) -> None:
        if first >= last:
            return
        needle = json.dumps(name, ensure_ascii=False).encode("utf-8", "backslashreplace") + b":"
        width, hint = len(needle), 0
        find, add_line, add_value = data.find, column.lines.append, column.values.append
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
            text = data[at + width : comma] if comma >= 0 else data[at + width : end].rstrip(b"\n }")
            add_line(line)
            try:
                add_value(float(text))
            except ValueError:  # null
                add_value(float("nan"))
        column.num_lines_read = last


def _step_of(line: bytes) -> int | None:
    """The step of a line; read from its beginning where the line is as our writer makes it."""
    if line.startswith(PREFIX) and line.endswith(b"}"):
        text, comma, _ = line[len(PREFIX) : len(PREFIX) + 24].partition(b",")
        if comma and text.isdigit():
            return int(text)
    record = parse_object(line)
    step = record.get("step", 0) if record is not None else None
    return step if isinstance(step, int) and abs(step) < 2**63 else None


def last_values(tail: bytes) -> dict[str, Any]:
    """The newest value of every metric in the last lines of the file, and the newest `step`."""
    values: dict[str, Any] = {}
    for line in tail.splitlines():
        values |= {name: value for name, value in (parse_object(line) or {}).items() if value is not None}
    return values
