"""Rows that cannot be used: written down with file, row and reason, counted, and past a limit a reason to stop.

One JSON object a line in `quarantine.jsonl` of the run folder; a row that is found again, by a resumed run or in a
later epoch, is neither written nor counted twice. What makes a row bad is decided by others.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from podium.data.places import counted, place_words
from podium.errors import DataError

logger = logging.getLogger(__name__)

MAX_REASONS, MAX_NUMBERS = 3, 5
"""How many different reasons, and rows of each, a message names; the file has all."""


class BadRow(DataError):
    """One row cannot be used; training may go on without it."""

    def __init__(self, file: str, row: int, reason: str) -> None:
        """`row` counts from 1; of a text file it is the line."""
        self.file, self.row, self.reason = file, row, reason
        super().__init__(f"{place_words(file, row)}: {reason}")

    def __reduce__(self) -> tuple[type[BadRow], tuple[str, int, str]]:
        return type(self), (self.file, self.row, self.reason)


class OverlongRow(BadRow):
    """A row whose prompt is too long, with `data.overlong_prompts: drop`: left out, but not bad."""


def summarize(found: Sequence[BadRow]) -> str:
    """The rows by file and reason, the first few of each by number."""
    groups: dict[tuple[str, str], list[BadRow]] = {}
    for bad in found:
        groups.setdefault((bad.file, bad.reason), []).append(bad)
    parts = [_words(rows) for rows in list(groups.values())[:MAX_REASONS]]
    others = sum(len(rows) for rows in list(groups.values())[MAX_REASONS:])
    return "; ".join([*parts, *([f"and {others} more for other reasons"] if others else [])])


def _words(rows: Sequence[BadRow]) -> str:
    first, *others = rows
    if not others:
        return str(first)
    numbers = ", ".join(str(bad.row) for bad in rows[:MAX_NUMBERS])
    rest = f" and {len(rows) - MAX_NUMBERS} more" if len(rows) > MAX_NUMBERS else ""
    kind = counted(first.file, first.row).split()[0]
    return f"{first.file}, {kind}s {numbers}{rest}: {first.reason}"


class Quarantine:
    def __init__(self, path: Path | None, max_bad_rows: int) -> None:
        self.path, self.max_bad_rows = path, max_bad_rows
        self._written = self._read()
        self._seen: set[tuple[str, int]] = set()

    def __len__(self) -> int:
        """Different bad rows found in this run."""
        return len(self._seen)

    def add(self, *found: BadRow) -> None:
        """Note bad rows; raises when there are more than allowed by now."""
        new = list({(bad.file, bad.row): bad for bad in found if (bad.file, bad.row) not in self._seen}.values())
        for bad in new:
            self._seen.add((bad.file, bad.row))
            if self.path is not None and (bad.file, bad.row) not in self._written:
                self._write({"file": bad.file, "row": bad.row, "reason": bad.reason})
        if new and len(self) > self.max_bad_rows:
            count = "1 row" if len(self) == 1 else f"{len(self)} rows"
            where = f" (see {self.path})" if self.path is not None else ""
            raise DataError(
                f"{count} cannot be used, data.max_bad_rows is {self.max_bad_rows}: {summarize(new)}{where}. Repair "
                "the file, or raise data.max_bad_rows to leave such rows out"
            ) from new[0]
        if new:
            logger.warning("left out: %s", summarize(new))

    def _write(self, record: dict[str, str | int]) -> None:
        assert self.path is not None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        except OSError as error:
            logger.warning("%s cannot be written: %s", self.path, error)

    def _read(self) -> set[tuple[str, int]]:
        if self.path is None or not self.path.exists():
            return set()
        known = set()
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
                known.add((str(record["file"]), int(record["row"])))
            except (ValueError, KeyError, TypeError):
                continue  # half a line, left by a crash
        return known
