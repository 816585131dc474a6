"""The process of a hosted engine, as the trainer's worker sees it: start, orders, calls with a limit, end.

The two talk over a pair of sockets that nobody else can reach. The process runs the Python that the user names; of
Podium it finds this very package, and nothing else of this environment. Whoever waits here waits with a limit, and a
process that died or no longer answers is a `HostDied`; starting another one is the engine's matter (hosted.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import podium
from podium.engines.rollout.host.records import HostSettings
from podium.errors import RolloutError
from podium.stop_points import stop_point

LOOK_S = 0.5
CLOSE_S = 1.0
"""What an engine may take to end by itself; a Ray worker has two seconds for all of its own end."""
TAIL_LINES = 8
TAIL_ERRORS = 6
ERROR = re.compile(r"\b\w*(Error|Exception)\b:?")
NOISE = ("WARNING", "warnings.warn", "UserWarning")


class HostDied(Exception):
    """The engine's process is gone or silent. Never leaves this room."""


class HostProcess:
    """One process with one engine in it."""

    def __init__(self, settings: HostSettings, python: str, start_limit_s: float, silence_limit_s: float) -> None:
        self.name, self.silence_limit_s = settings.engine, silence_limit_s
        self.folder = Path(tempfile.mkdtemp(prefix="podium-engine-"))
        (self.folder / "podium").symlink_to(Path(podium.__file__).parent, target_is_directory=True)
        self.log_path = self.folder / "engine.log"
        self.news = threading.Condition()
        """Notified when anything came in, or the process ended."""
        self.inbox: deque[tuple[Any, ...]] = deque()
        self._answers: dict[int, tuple[str, Any]] = {}
        self._next_call = 1
        self._is_open = True
        self._heard = time.monotonic()
        self._sending = threading.Lock()
        self._connection, theirs = Pipe(duplex=True)
        with theirs, self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [python or sys.executable, "-m", "podium.engines.rollout.host.server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(self.folder), settings.path]))},
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for the trainer; and its whole group can be ended
            )
        self._reader = threading.Thread(target=self._read, name=f"{self.name}-answers", daemon=True)
        self._reader.start()
        try:
            self._connection.send(_placed(settings, self.folder))
            self.facts: dict[str, Any] = self._await(0, "start", start_limit_s, is_starting=True)
        except BaseException as error:
            tail = self.log_tail()
            self.close()
            if not isinstance(error, HostDied | OSError):
                raise
            raise RolloutError(f"the {self.name} engine did not start: {error}{tail}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    # ---- talking

    def send(self, *message: Any) -> None:
        with self._sending:
            try:
                self._connection.send(message)
            except OSError as error:
                raise HostDied(self._why()) from error

    def call(self, method: str, *arguments: Any, limit_s: float) -> Any:
        """Ask for something and wait for the answer."""
        with self.news:
            call_id, self._next_call = self._next_call, self._next_call + 1
        self.send("call", call_id, method, arguments)
        return self._await(call_id, method, limit_s)

    def check(self) -> None:
        """Raise HostDied when the process is gone, or silent for too long."""
        if not self._is_open or self._process.poll() is not None:
            raise HostDied(self._why())
        silent_s = time.monotonic() - self._heard
        if silent_s > self.silence_limit_s:
            raise HostDied(f"it has not answered for {silent_s:.0f} s (rollout.engine_timeout_s)")

    def _await(self, call_id: int, method: str, limit_s: float, is_starting: bool = False) -> Any:
        deadline = time.monotonic() + limit_s
        with self.news:
            while call_id not in self._answers:
                if is_starting:
                    self._heard = time.monotonic()  # it beats once it has started
                self.check()
                stop_point()
                if time.monotonic() >= deadline:
                    raise HostDied(f"it did not finish {method}() within {limit_s:g} s")
                self.news.wait(min(LOOK_S, max(0.0, deadline - time.monotonic())))
            kind, value = self._answers.pop(call_id)
        if kind == "error":
            raise RolloutError(f"the {self.name} engine refused {method}(): {value}")
        return value

    def _read(self) -> None:
        """In a thread of its own: everything the process says."""
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                message = None
            with self.news:
                self._heard = time.monotonic()
                if message is None:
                    self._is_open = False
                elif message[0] in ("answer", "error"):
                    self._answers[message[1]] = (message[0], message[2])
                elif message[0] != "beat":
                    self.inbox.append(message)
                self.news.notify_all()
            if message is None:
                return

    def _why(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)  # its connection ends a moment before it does
        code = self._process.poll()
        if code is None:
            return "it closed its connection"
        return f"signal {signal.Signals(-code).name} ended it" if code < 0 else f"it ended with code {code}"

    def log_tail(self) -> str:
        """The last lines it wrote, with a headline; or nothing."""
        with contextlib.suppress(OSError):
            lines = self.log_path.read_text(errors="replace").splitlines()
            telling = [line for line in lines if line.strip() and not any(word in line for word in NOISE)]
            errors = [line for line in telling[:-TAIL_LINES] if ERROR.search(line)]  # the first is often the cause
            shown = [*dict.fromkeys(errors)][:TAIL_ERRORS] + telling[-TAIL_LINES:]
            if shown:
                return f"\n--- errors and last lines of the {self.name} engine ---\n" + "\n".join(shown)
        return ""

    # ---- end

    def close(self, grace_s: float = CLOSE_S) -> None:
        """End the process and whatever it started. Again is harmless."""
        if not self._connection.closed:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as both:
                both.shutdown(socket.SHUT_RDWR)  # the reading thread sees the end, and so does the process
            self._reader.join(LOOK_S)
            self._connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)  # first: a worker that is closed may have little time
        if grace_s > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s + 1.0)


def _placed(settings: HostSettings, folder: Path) -> HostSettings:
    from dataclasses import replace

    return replace(settings, folder=str(folder))
