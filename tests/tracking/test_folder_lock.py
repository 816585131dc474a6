"""A run folder belongs to one process at a time, for as long as that process lives."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from podium.errors import RunFolderBusy
from podium.tracking.folder_lock import NAME, FolderLock, held_by_other

HOLD = """
import os, sys, pathlib
from podium.tracking.folder_lock import FolderLock
lock = FolderLock(pathlib.Path(sys.argv[1]))
if os.fork() == 0:  # a child that outlives its parent holds nothing
    sys.stdin.readline()
    os._exit(0)
print("held")
sys.stdin.readline()
"""


@contextmanager
def another(folder: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-uc", HOLD, str(folder)]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "held\n"
        yield other
    finally:
        other.kill()
        other.communicate(timeout=60)


def test_a_second_process_is_refused_and_told_who_holds_the_folder(tmp_path: Path) -> None:
    with another(tmp_path) as other:
        holder = rf"process {other.pid} on {socket.gethostname()}"
        with pytest.raises(RunFolderBusy, match=holder):
            FolderLock(tmp_path)
        assert str(other.pid) in str(held_by_other(tmp_path))
        FolderLock(tmp_path / "elsewhere").release()


def test_a_process_that_is_killed_leaves_no_lock_even_when_its_child_lives_on(tmp_path: Path) -> None:
    with another(tmp_path) as other:
        other.send_signal(signal.SIGKILL)
        other.wait(60)
        lock = FolderLock(tmp_path)
        assert held_by_other(tmp_path) is None
        lock.release()


def test_one_process_may_hold_a_folder_twice_and_again(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.release()
    first.release()
    assert run(TRY, tmp_path) == "busy", "the second one still holds it"
    second.release()
    assert run(TRY, tmp_path) == "free"
    FolderLock(tmp_path).release()


def test_a_file_system_without_locks_is_used_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    FolderLock(tmp_path).release()
    assert "has no locks" in caplog.text


def test_what_is_left_of_an_old_lock_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("not json")
    lock = FolderLock(tmp_path)
    assert str(os.getpid()) in (tmp_path / NAME).read_text()
    lock.release()


def test_asking_makes_nothing(tmp_path: Path) -> None:
    assert held_by_other(tmp_path / "none") is None
    assert not (tmp_path / "none").exists()


TRY = """
import sys, pathlib
from podium.errors import RunFolderBusy
from podium.tracking.folder_lock import FolderLock
try:
    FolderLock(pathlib.Path(sys.argv[1]))
    print("free")
except RunFolderBusy:
    print("busy")
"""
FORKED = """
import os, sys, pathlib
from podium.tracking.folder_lock import FolderLock
lock = FolderLock(pathlib.Path(sys.argv[1]))
sys.stdout.flush()
child = os.fork()
if child:
    os.waitpid(child, 0)
    os._exit(0)
"""


def run(code: str, folder: Path) -> str:
    words = [sys.executable, "-uc", code, str(folder)]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=600).stdout.strip()


def test_a_child_does_not_take_the_lock_of_its_parent_for_its_own(tmp_path: Path) -> None:
    assert run(FORKED + TRY, tmp_path) == "busy"
    assert run(TRY, tmp_path) == "free"
