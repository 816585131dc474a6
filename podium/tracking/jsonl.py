"""Files of one JSON object per line that survive a crash in the middle of a line.

A line is appended with one write and is in the file when `append` returns. A last line without its newline is what a
crash left: readers skip it and a writer cuts it off. Not-a-number and infinity, which JSON lacks, become null.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

log = logging.getLogger(__name__)

_MAX_WAITING_BYTES = 1 << 24


class JsonLines:
    """An append-only file, for several threads. A full disk does not end the run: lines wait until there is room."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.delayed = 0
        """Lines that could not be written when they came. They are kept in memory and written with the next ones."""
        self._waiting = b""
        self._is_last_lost = False
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_partial_line(path)
        self._file = path.open("ab", buffering=0)

    def append(self, record: Mapping[str, Any]) -> None:
        with self._lock:
            self._waiting += encode(record)
            self._is_last_lost = False
            self._write_or_wait()

    def amend(self, record: Mapping[str, Any]) -> None:
        """Put the record in the place of the last one. Where the disk has no room for that, it becomes a line more."""
        line = encode(record)
        with self._lock:
            if self._waiting or self._is_last_lost:
                self._waiting = self._waiting[: _last_line(self._waiting)] + line
                self._is_last_lost = False
            else:
                try:
                    _replace_last(self.path, line)
                    return
                except OSError:
                    self._waiting = line
            self._write_or_wait()

    def flush(self) -> None:
        """Write what waits, or raise what keeps it from the disk."""
        with self._lock:
            self._write()

    def _write_or_wait(self) -> None:
        try:
            self._write()
        except OSError as error:
            if not self.delayed:
                log.warning("%s cannot be written (%s); the run goes on and its lines wait", self.path, error)
            self.delayed += 1
            if len(self._waiting) > _MAX_WAITING_BYTES:
                self._waiting, self._is_last_lost = b"", True

    def _write(self) -> None:
        if not self._waiting:
            return
        end = self._file.seek(0, os.SEEK_END)
        try:
            written = self._file.write(self._waiting)
            if written != len(self._waiting):
                raise OSError(f"{written} of {len(self._waiting)} bytes written")
        except OSError:
            os.ftruncate(self._file.fileno(), end)
            raise
        self._waiting = b""

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
        """Drop the lines that are not wanted; the file is replaced whole. Returns the last one that stays."""
        records = [record for record in read_lines(self.path) if wanted(record)]
        self._file.close()
        write_lines(self.path, records)
        self._file = self.path.open("ab", buffering=0)
        return records[-1] if records else None

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a file, none if there is no file. A damaged line is skipped with a warning."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if isinstance(record, dict):
                yield record
            else:
                log.warning("%s line %d is not a JSON object and is skipped", path, number)


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a whole file, or leave what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.writelines(encode(record) for record in records)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def encode(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(plain(record), ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "backslashreplace")


def plain(value: Any) -> Any:
    """The value in JSON's types: arrays as lists, other objects as their text, non-finite numbers as null."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch, without importing either
        return plain(value.tolist())
    return str(value)


def _cut_partial_line(path: Path) -> None:
    if not path.exists():
        return
    content_end = path.stat().st_size
    with path.open("rb+") as file:
        position = _after_newline(file, content_end)
        if position != content_end:
            file.truncate(position)


def _after_newline(file: BinaryIO, position: int) -> int:
    """Where the line begins that has `position` in it: behind the last newline before that, or at the start."""
    while position > 0:
        start = max(0, position - 65536)
        file.seek(start)
        newline = file.read(position - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0


def _last_line(lines: bytes) -> int:
    return lines.rfind(b"\n", 0, len(lines) - 1) + 1


def _replace_last(path: Path, line: bytes) -> None:
    """Overwrite the last line of a file of complete lines; when that fails the old one stands again."""
    with path.open("rb+", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        start = _after_newline(file, max(0, end - 1))
        file.seek(start)
        before = file.read(end - start)
        try:
            file.seek(start)
            written = file.write(line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes written")
            file.truncate(start + len(line))
        except OSError:
            file.seek(start)
            file.write(before)
            file.truncate(end)
            raise
