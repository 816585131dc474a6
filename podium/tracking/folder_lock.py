"""FolderLock: one process at a time writes to a run folder.

The lock is the operating system's, on a file of its own that nobody else opens: it ends with the process, however that
ends, and children do not inherit it. What is in the file only says who holds it. Readers (dashboard, `podium eval`) do
not ask. Where the file system knows no locks the run goes on with a note.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from podium.errors import RunFolderBusy

log = logging.getLogger(__name__)

NAME = "run.lock"


@dataclass
class _Held:
    file: BinaryIO | None
    """None: without a lock, since there is none to be had."""
    pid: int
    count: int


_held: dict[Path, _Held] = {}
_guard = threading.Lock()


class FolderLock:
    """Held from its making to `release`. A process may hold the same folder several times."""

    def __init__(self, folder: Path) -> None:
        self._folder: Path | None = folder.resolve()
        with _guard:
            held = _held.get(self._folder)
            if held is None or held.pid != os.getpid():  # a child knows of its parent's locks and has none of them
                held = _held[self._folder] = _Held(_lock(self._folder), os.getpid(), 0)
            held.count += 1

    def release(self) -> None:
        """Again is harmless."""
        with _guard:
            held = _held.get(self._folder) if self._folder is not None else None
            if self._folder is not None and held is not None and held.pid == os.getpid():
                held.count -= 1
                if held.count == 0:
                    del _held[self._folder]
                    if held.file is not None:
                        held.file.close()
        self._folder = None


def held_by_other(folder: Path) -> str | None:
    """Who else writes to the folder, in words, or None."""
    if not (folder / NAME).is_file():
        return None
    try:
        FolderLock(folder).release()
    except RunFolderBusy as busy:
        return str(busy)
    return None


def _lock(folder: Path) -> BinaryIO | None:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        file = (folder / NAME).open("ab+", buffering=0)
    except OSError as error:
        log.warning("%s cannot be opened (%s): see that no other process trains in %s", NAME, error, folder)
        return None
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _holder(file)
        file.close()
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            log.warning("this file system has no locks (%s): see that no other process trains in %s", error, folder)
            return None
        raise RunFolderBusy(
            f"another process trains in {folder} now{holder}; stop it, or give this run a folder of its own with "
            "trainer.experiment_name or trainer.default_local_dir"
        ) from None
    _note_holder(file)
    return file


def _note_holder(file: BinaryIO) -> None:
    """Say who holds the lock; a full disk costs that, not the lock."""
    about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    try:
        file.truncate(0)
        file.write(json.dumps(about).encode())
    except OSError:
        log.debug("%s cannot be written", NAME, exc_info=True)


def _holder(file: BinaryIO) -> str:
    try:
        file.seek(0)
        about = json.loads(file.read())
        return f" (process {about['pid']} on {about['host']}, since {about['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
