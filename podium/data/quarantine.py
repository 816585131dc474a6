"""Rows that cannot be used: written down with file, row and reason, counted, and past a limit a reason to stop.

One JSON object a line in `quarantine.jsonl` of the run folder; a row that is found again, by a resumed run or in a
later epoch, is neither written nor counted twice. What makes a row bad is decided by others.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from podium.errors import DataError

logger = logging.getLogger(__name__)


class BadRow(DataError):
    """One row cannot be used; training may go on without it."""

    def __init__(self, file: str, row: int, reason: str) -> None:
        self.file, self.row, self.reason = file, row, reason
        super().__init__(f"{file}, row {row}: {reason}")

    def __reduce__(self) -> tuple[type[BadRow], tuple[str, int, str]]:
        return type(self), (self.file, self.row, self.reason)


class OverlongRow(BadRow):
    """A row whose prompt is too long, with `data.overlong_prompts: drop`: left out, but not bad."""


class Quarantine:
    def __init__(self, path: Path | None, max_bad_rows: int) -> None:
        self.path, self.max_bad_rows = path, max_bad_rows
        self._written = self._read()
        self._seen: set[tuple[str, int]] = set()

    def __len__(self) -> int:
        """Different bad rows found in this run."""
        return len(self._seen)

    def add(self, bad: BadRow) -> None:
        """Note a bad row; raises it when there are more than allowed."""
        key = (bad.file, bad.row)
        if key in self._seen:
            return
        self._seen.add(key)
        if self.path is not None and key not in self._written:
            self._write({"file": bad.file, "row": bad.row, "reason": bad.reason})
        if len(self) > self.max_bad_rows:
            where = f"; all are in {self.path}" if self.path is not None else ""
            raise DataError(
                f"{bad} (bad row number {len(self)}, data.max_bad_rows is {self.max_bad_rows}{where}). Repair the "
                "file, or raise data.max_bad_rows to leave such rows out"
            ) from bad
        logger.warning("left out: %s", bad)

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
