"""Files that grow while they are read: complete lines only, each once, and a word when the file was replaced.

A resumed run cuts or replaces its files. That is seen by the inode, the size, and the last bytes that were read;
reading then starts over. A run completes its last line of metrics when it knows more of that step: only that line is
read again. A last line without its newline is left for the next look.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

BLOCK_BYTES = 1 << 23
MARK_BYTES = 64


@dataclass(frozen=True)
class Block:
    """Complete lines: the first `size` bytes of `data`, which are the file's from `start` on.

    The buffer is used again for the next block: a reader of 300 MB would otherwise spend most of its time allocating.
    """

    start: int
    data: bytearray
    size: int
    is_restart: bool = False
    """What was read before no longer counts; there is no data in this block."""

    def lines(self) -> list[bytes]:
        return bytes(memoryview(self.data)[: self.size]).split(b"\n")[:-1]


class GrowingFile:
    """The position of a reader in a file."""

    def __init__(self, is_amended: bool = False) -> None:
        """`is_amended`: a longer line may take the place of the last one; it is then read again, and alone."""
        self.offset = 0
        self._inode: tuple[int, int] | None = None
        self._mark = b""
        self._is_amended = is_amended
        self._last_line, self._mark_before_it = 0, b""

    def new_blocks(self, file: BinaryIO) -> Iterator[Block]:
        """What has been added since the last call, in blocks of some megabytes."""
        if self._start_over_if_replaced(file):
            yield Block(0, bytearray(), 0, is_restart=True)
        available = os.fstat(file.fileno()).st_size - self.offset
        buffer = bytearray(max(1, min(BLOCK_BYTES, available)))
        while True:
            num_read = os.preadv(file.fileno(), [buffer], self.offset)
            size = buffer.rfind(b"\n", 0, num_read) + 1
            if not size:
                if num_read < len(buffer):
                    return
                buffer = bytearray(2 * len(buffer))  # a line longer than a block
                continue
            start = self.offset
            self.offset += size
            last_line = buffer.rfind(b"\n", 0, size - 1) + 1
            self._last_line = start + last_line
            self._mark_before_it = bytes(buffer[max(0, last_line - MARK_BYTES) : last_line]) or self._mark
            self._mark = bytes(buffer[max(0, size - MARK_BYTES) : size])
            yield Block(start, buffer, size)

    def _start_over_if_replaced(self, file: BinaryIO) -> bool:
        info = os.fstat(file.fileno())
        inode = (info.st_dev, info.st_ino)
        same_file, self._inode = self._inode is None or inode == self._inode, inode
        if same_file and _stands(file, self._mark, self.offset):
            return False
        may_be_amended = same_file and self._is_amended and self._last_line and info.st_size > self.offset
        if may_be_amended and _stands(file, self._mark_before_it, self._last_line):
            self.offset, self._mark = self._last_line, self._mark_before_it
            return False
        self.offset, self._mark = 0, b""
        return True


def _stands(file: BinaryIO, mark: bytes, end: int) -> bool:
    """Whether these bytes still stand before a place in the file."""
    return not mark or os.pread(file.fileno(), len(mark), end - len(mark)) == mark


class Records:
    """All objects of a small JSON-lines file (events), read on as it grows. Damaged lines are skipped and counted."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.num_damaged = 0
        self._file = GrowingFile()

    def refresh(self, path: Path | None) -> list[dict[str, Any]]:
        if path is None:
            self.records = []
            return self.records
        with path.open("rb") as file:
            for block in self._file.new_blocks(file):
                if block.is_restart:
                    self.records, self.num_damaged = [], 0
                for line in block.lines():
                    record = parse_object(line)
                    if record is not None:
                        self.records.append(record)
                    elif line.strip():
                        self.num_damaged += 1
        return self.records


def parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def read_tail(path: Path, num_bytes: int) -> bytes:
    """The last complete lines of a file, about so many bytes of them."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = max(0, size - num_bytes)
        data = os.pread(file.fileno(), size - start, start)
    if start:
        data = data[data.find(b"\n") + 1 :]
    return data[: data.rfind(b"\n") + 1]
