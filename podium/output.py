"""Text for people on a disk that may be full: what cannot be written is dropped, nobody fails for it.

A run's output often goes to a file on the disk that its checkpoints fill. A line that fits nowhere is no reason to end
a run, and once there is room again the next lines appear. Only a reader who has gone is told to the writer.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO


class _Dropping(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError:
            return memoryview(data).nbytes


def open_dropping(path: Path) -> TextIO:
    """The file, to append text to, a line at a time."""
    raw = _Dropping(path, "a")
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)


@contextmanager
def dropping_output() -> Iterator[None]:
    """Inside, stdout and stderr drop what cannot be written; what somebody put in their place is left alone."""
    before = sys.stdout, sys.stderr
    drop_output()
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # the reader has gone, or somebody closed it
                stream.flush()
        sys.stdout, sys.stderr = before


def drop_output() -> None:
    """The same for the rest of this process."""
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        sys.stdout = _dropping(sys.stdout)
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:
        sys.stderr = _dropping(sys.stderr)


def say_at_once(text: str) -> None:
    """To stderr without the locks of a stream or a logger: safe in a signal handler."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


def _dropping(stream: TextIO) -> TextIO:
    with contextlib.suppress(OSError):
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Dropping(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty() or stream is sys.__stderr__,
    )
