"""Both ends of the talk between bench/rollout.py and a peer, which generates in a process of its own.

The bench writes a job as a line of JSON, and the peer sets itself up; for each further line it does the whole job once.
After set-up and after each run it answers "done" and the processor seconds that took; it ends when the lines do. One
that dies, runs out of memory or is silent for too long raises `PeerFailed` in the bench and breaks nothing there.
Only the standard library is used here: a peer may run under another Python.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class PeerFailed(RuntimeError):
    """The peer cannot go on; the message says how it ended, with the last line of its stderr."""


def limit_memory(num_bytes: int) -> None:
    """What more this process asks for on a CPU is refused, instead of taken from the machine."""
    resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))


# ---- the bench's end


class Turn(NamedTuple):
    seconds: float
    cpu_s: float


@dataclass(frozen=True)
class Patience:
    """How long the bench waits: for one answer of a peer, and in all."""

    peer_timeout_s: float
    limit_s: float
    start: float = field(default_factory=time.monotonic)

    def left_s(self) -> float:
        return self.start + self.limit_s - time.monotonic()

    def answer_s(self) -> float:
        return max(1.0, min(self.peer_timeout_s, self.left_s()))


class Peer:
    """A peer's process."""

    def __init__(self, command: list[str]) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed with the peer
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            start_new_session=True,  # so that its own children end with it
        )
        atexit.register(self.close)

    def ask(self, line: str, patience: Patience) -> float:
        """Has the peer work on the line; its processor seconds."""
        timeout_s = patience.answer_s()
        assert self._process.stdin is not None and self._process.stdout is not None
        answer, start = "", time.monotonic()
        alarm = threading.Timer(timeout_s, self._kill)
        alarm.start()
        try:
            with suppress(BrokenPipeError):
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
                answer = self._process.stdout.readline()
        finally:
            alarm.cancel()
        if not answer.startswith("done "):
            silent = f"no answer in {timeout_s:.0f} s"
            if timeout_s < patience.peer_timeout_s:
                silent += ", which --limit-s had left"
            raise PeerFailed(self._end(silent if time.monotonic() - start >= timeout_s else ""))
        return float(answer.split()[1])

    def close(self) -> None:
        atexit.unregister(self.close)
        self._kill()
        with suppress(BrokenPipeError):
            self._process.communicate()
        self._stderr.close()

    def _kill(self) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _end(self, why: str) -> str:
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._kill()
            code = self._process.wait()
        why = why or (f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}")
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f"{why}: {lines[-1].strip()[:200]}" if lines else why


def start_peer(command: list[str], job: dict[str, Any], patience: Patience) -> Peer:
    """A peer that has set itself up and done the job once."""
    if not Path(command[0]).is_file():
        raise PeerFailed(f"there is no {command[0]}")
    peer = Peer(command)
    try:
        peer.ask(json.dumps(job), patience)
        peer.ask("run", patience)
    except PeerFailed:
        peer.close()
        raise
    return peer


def take_turns(
    our_turn: Callable[[], Turn], command: list[str] | None, job: dict[str, Any], pairs: int, patience: Patience
) -> tuple[list[Turn], list[Turn], str]:
    """Our turns, the peer's, and how the peer failed if it did: ours then go on alone. A pair that would not end in
    time is not begun."""
    mine: list[Turn] = []
    theirs: list[Turn] = []
    peer, failure, longest_s = None, "", 0.0
    if command and patience.left_s() > 0:
        try:
            peer = start_peer(command, job, patience)
        except PeerFailed as error:
            failure = str(error)
    while len(mine) < pairs and patience.left_s() > longest_s:
        start = time.monotonic()
        mine.append(our_turn())
        if peer is not None:
            begun = time.perf_counter()
            try:
                cpu_s = peer.ask("run", patience)
                theirs.append(Turn(time.perf_counter() - begun, cpu_s))
            except PeerFailed as error:
                peer.close()
                peer, failure = None, str(error)
        longest_s = max(longest_s, time.monotonic() - start)
    if peer is not None:
        peer.close()
    return mine, theirs, failure


# ---- the peer's end


def serve(make: Callable[[dict[str, Any]], Callable[[], int]]) -> None:
    """Answers the bench. `make` sets up for a job and returns what does it once, which returns the tokens it wrote."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    try:
        job = json.loads(sys.stdin.readline())
        if job["device"] == "cpu":
            limit_memory(job["memory_bytes"])
        start = time.process_time()
        run = make(job)
        while True:
            answers.write(f"done {time.process_time() - start}\n")
            answers.flush()
            if not sys.stdin.readline():
                return
            start = time.process_time()
            written = run()
            if written < job["new_tokens"]:
                raise RuntimeError(f"wrote {written} of {job['new_tokens']} tokens")
    except Exception as error:  # noqa: BLE001  whatever it is, its last line goes into the bench's row
        traceback.print_exc()
        message = str(error).strip().partition("\n")[0]
        print(f"{type(error).__name__}: {message}", file=sys.stderr, flush=True)
        os._exit(1)  # no library has a later word
