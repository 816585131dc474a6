"""Reward processes: functions run outside the trainer, and one that hangs is killed for real.

Each slot is a thread that owns one process. It hands it rows and waits `timeout_s` for each answer; when none comes the
whole process group gets SIGKILL, the row is unscored with the reason, and a new process takes the rows behind it. A
process that dies by itself is treated the same. Which function is right for a row is not known here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import BinaryIO

from podium.rewards.calling import RewardSpec
from podium.rewards.child import HEADER, write_message
from podium.rewards.records import Outcome, RewardRow, failed

logger = logging.getLogger(__name__)

Job = list[tuple[RewardRow, "Future[Outcome]"]]
START_TIMEOUT_S = 120.0
GRACE_S = 1.0
"""Async functions watch their own limit; the process is killed this much later."""
MAX_CHUNK = 32


class RewardRunner:
    def __init__(self, spec: RewardSpec, num_processes: int, together: bool) -> None:
        self.spec, self.num_processes, self.together = spec, num_processes, together
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._slots = [_Slot(spec, together, num_processes, self._jobs) for _ in range(num_processes)]
        self._end = weakref.finalize(self, _end, self._slots, self._jobs)  # also when nobody closes it, and at exit

    def submit(self, rows: Sequence[RewardRow]) -> list[Future[Outcome]]:
        """Start scoring; one future per row, which always gets an outcome. A function of many rows gets all these."""
        pairs: Job = [(row, Future()) for row in rows]
        size = len(pairs) if self.together else min(MAX_CHUNK, -(-len(pairs) // (8 * self.num_processes)))
        for start in range(0, len(pairs), max(size, 1)):
            self._jobs.put(pairs[start : start + size])
        return [future for _, future in pairs]

    def close(self) -> None:
        """End the processes now; rows that still wait are unscored."""
        self._end()


def _end(slots: Sequence[_Slot], jobs: queue.SimpleQueue[Job | None]) -> None:
    for slot in slots:
        slot.stop()
    for _ in slots:
        jobs.put(None)
    for slot in slots:
        slot.thread.join(10)


class _Slot:
    def __init__(self, spec: RewardSpec, together: bool, num_slots: int, jobs: queue.SimpleQueue[Job | None]) -> None:
        self.spec, self.together, self.num_slots, self.jobs = spec, together, num_slots, jobs
        self.process: RewardProcess | None = None
        self.stopped = False
        self.thread = threading.Thread(target=self._work, name="reward-slot", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.stopped = True
        if self.process is not None:
            self.process.kill()

    def _work(self) -> None:
        try:
            self._ensure_process()  # so that it is there when the first rows come
        except RuntimeError as error:
            if not self.stopped:
                logger.warning("%s", error)
        while (job := self._next_job()) is not None:
            while job:
                job = self._run(job)
        if self.process is not None:
            self.process.close()

    def _next_job(self) -> Job | None:
        """The next rows; when many wait, this slot's share of them at once, so that the process never waits for us."""
        job = self.jobs.get()
        if job is None or self.together:
            return job
        job = list(job)
        for _ in range(self.jobs.qsize() // self.num_slots):
            if len(job) >= MAX_CHUNK:
                break
            try:
                more = self.jobs.get_nowait()
            except queue.Empty:
                break
            if more is None:
                self.jobs.put(None)
                break
            job += more
        return job

    def _run(self, job: Job) -> Job:
        """Score what the process manages; the rows that are left for another one."""
        waiting = dict(enumerate(job))
        names = " + ".join(self.spec.functions)
        try:
            process = self._ensure_process()
            process.send([row for row, _ in job])
            while waiting:
                limit = self.spec.timeout_s + (GRACE_S if self.together else 0.0)
                place, outcome = process.receive(limit)
                waiting.pop(place)[1].set_result(outcome)
            return []
        except TimeoutError:
            loss = failed(names, f"no answer within {self.spec.timeout_s:g} s; its process was killed", "timeout")
        except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
            loss = failed(names, str(error) or "its process died")
        if self.process is not None:
            self.process.close()
            self.process = None
        guilty = list(waiting) if self.together or self.stopped else list(waiting)[:1]
        for place in guilty:
            waiting.pop(place)[1].set_result(loss)
        return list(waiting.values())

    def _ensure_process(self) -> RewardProcess:
        if self.stopped:
            raise RuntimeError("the run is over")
        if self.process is None:
            self.process = RewardProcess(self.spec)
            if self.stopped:  # while it started, so that nobody has killed it
                raise RuntimeError("the run is over")
        return self.process


class RewardProcess:
    """One child; raises RuntimeError with the reason when it cannot load the functions."""

    def __init__(self, spec: RewardSpec) -> None:
        root = str(Path(__file__).resolve().parents[2])
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "podium.rewards.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=env | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        )
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self._requests: BinaryIO = self._child.stdin  # type: ignore[assignment]
        self._replies = self._child.stdout.fileno()
        self._buffer = b""
        threading.Thread(target=_forward, args=(self._child.stderr,), name="reward-stderr", daemon=True).start()
        try:
            write_message(self._requests, (spec, sys.path))
            problem = self._receive(START_TIMEOUT_S)
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            raise RuntimeError(f"the reward process did not start: {error or 'it died'}") from error
        if problem is not None:
            self.close()
            raise RuntimeError(f"the reward process cannot load the functions: {problem}")

    def send(self, rows: Sequence[RewardRow]) -> None:
        write_message(self._requests, list(rows))

    def receive(self, timeout_s: float) -> tuple[int, Outcome]:
        place, outcome = self._receive(timeout_s)
        return place, outcome

    def kill(self) -> None:
        """End the process and every process it started in its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def close(self) -> None:
        """Kill, and give the pipes back; only the thread that reads from them may do that."""
        self.kill()
        assert self._child.stdout
        self._child.stdout.close()
        with contextlib.suppress(OSError):  # what was not sent yet has no reader
            self._requests.close()

    def _receive(self, timeout_s: float) -> tuple[int, Outcome]:
        deadline = time.monotonic() + timeout_s
        size = HEADER.unpack(self._read(HEADER.size, deadline))[0]
        message: tuple[int, Outcome] = pickle.loads(self._read(size, deadline))
        return message

    def _read(self, count: int, deadline: float) -> bytes:
        poll = select.poll()
        poll.register(self._replies, select.POLLIN | select.POLLHUP)
        while len(self._buffer) < count:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            data = os.read(self._replies, 1 << 16)
            if not data:
                code = self._child.wait()
                raise EOFError(f"its process died with {_exit_words(code)}")
            self._buffer += data
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        return data


def _forward(stream: BinaryIO) -> None:
    with stream:
        for line in stream:
            logger.info("reward process: %s", line.decode(errors="replace").rstrip())


def _exit_words(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
