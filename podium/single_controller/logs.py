"""A worker process's log file: written by the worker, read by the controller when something went wrong.

`PODIUM_WORKER_LOGS` names the folder, one file per group and rank. Without it the files that Ray keeps are read.
A worker that is alive but silent can also be asked to write down where it is.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import time
from pathlib import Path

from podium.output import drop_output

FOLDER_VARIABLE = "PODIUM_WORKER_LOGS"
_TAIL_LINES = 25
_TAIL_BYTES = 8192
_STACK_WAIT_S = 3.0  # for the first line of a stack; one that is stopped writes none
_STACK_LOOK_S = 0.1


def log_path(folder: str, name: str, rank: int) -> str:
    plain = "".join(letter if letter.isalnum() or letter in "-_+." else "_" for letter in name)
    return str(Path(folder).absolute() / f"{plain}-rank{rank}.log")


def open_worker_log(path: str | None) -> str | None:
    """Send all output of this process to the file, logging included. Returns where the output goes, if to a file."""
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            os.dup2(file, descriptor)
        os.close(file)
    else:
        with contextlib.suppress(OSError):  # no /proc on this system
            path = os.readlink(f"/proc/{os.getpid()}/fd/2")
    drop_output()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("podium").setLevel(logging.INFO)
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
    return path


def tail(path: str | None, ask_pid: int | None = None) -> str:
    """The last lines of a log file of this machine, or nothing. `ask_pid` is first asked to write its stack there."""
    if ask_pid is not None and hasattr(faulthandler, "register"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            before = os.path.getsize(path or "")
            os.kill(ask_pid, signal.SIGUSR1)
            _wait_for_more(path or "", before)
    try:
        with open(path or "", "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def _wait_for_more(path: str, before: int) -> None:
    """Until the file has grown and grows no further; not long where nothing comes."""
    deadline = time.monotonic() + _STACK_WAIT_S
    seen = before
    while time.monotonic() < deadline:
        time.sleep(_STACK_LOOK_S)
        size = os.path.getsize(path)
        if size == seen > before:
            return
        seen = size
