"""Being told to stop: SIGTERM, SIGINT, or an instance that will be taken away.

A stop drops what is under way (generation, scoring, validation) but never an update: code under `protected()` runs to
its end first. The signal is only noted when it comes; RunStopped is raised at the next stop point (stop_points.py)
or protected phase. What then remains to be done is the callback of `guard`: the trainer saves. A second Ctrl-C ends at
once. The exit code is the shell's, 128 + signal. Leaving that takes longer than the grace time ends the process as it
is, showing where it was; the newest complete checkpoint is what counts then.
"""

from __future__ import annotations

import faulthandler
import functools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol, TypeVar

from podium.config.schema import TrainerConfig
from podium.output import say_at_once
from podium.stop_points import off_stop_point, on_stop_point

log = logging.getLogger(__name__)

EXPIRATION_VARIABLES = (
    "MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
    "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
)
SAVE_ROOM_S = 60.0
"""What a save may take, beside the longest step, unless one took longer."""
NOTHING_TO_SAVE_S = 5.0
"""The grace time before training begins."""
LEAVE_S = 20.0
"""What the end of the process may take once all is saved and closed."""


class RunStopped(BaseException):
    """The run was told to stop. Not an Exception: nobody who handles failures should handle this."""

    def __init__(self, signum: int, reason: str) -> None:
        super().__init__(reason)
        self.signum, self.reason = signum, reason

    @property
    def exit_code(self) -> int:
        return 128 + self.signum


class StopSignals:
    """A context: inside it, signals become RunStopped in the main thread, as soon as that is safe.

    Until `guard` is entered there is nothing to save, and a stop takes a few seconds at most.
    """

    def __init__(self, config: TrainerConfig, environ: Mapping[str, str] | None = None) -> None:
        self._grace_s, self._redundant_s = config.stop_grace_s, config.esi_redundant_time
        self._expires_at = expiration_time(os.environ if environ is None else environ)
        self._longest_step_s = 0.0
        self._request: RunStopped | None = None
        self._raised = False
        self._protected = 0
        self._guarding = False
        self._timer: threading.Timer | None = None
        self._before: dict[int, Any] = {}
        self._entered = 0

    # ---- signals

    def __enter__(self) -> StopSignals:
        self._entered += 1
        if self._entered == 1 and threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGTERM, signal.SIGINT):
                self._before[signum] = signal.signal(signum, self._on_signal)
            on_stop_point(self._at_stop_point)
        return self

    def __exit__(self, *_: object) -> None:
        self._entered -= 1
        if self._entered == 0 and self._before:
            off_stop_point(self._at_stop_point)
            for signum, handler in self._before.items():
                signal.signal(signum, handler)
            self._before.clear()
            if self._timer is not None:
                self._timer.cancel()

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self._request is None:
            self.request(signum, f"got {signal.Signals(signum).name}")
        elif signum == signal.SIGINT:
            raise KeyboardInterrupt

    def _at_stop_point(self) -> None:
        if not self._protected:
            self.check()

    # ---- what the trainer says

    def request(self, signum: int, reason: str) -> None:
        """Stop when it is safe. May be called in a signal handler, so it writes without the locks of a logger."""
        if self._request is None:
            self._request = RunStopped(signum, reason)
            say_at_once(f"{reason}: stopping\n")
            if self._grace_s > 0:
                limit_s = self._grace_s if self._guarding else min(NOTHING_TO_SAVE_S, self._grace_s)
                self._timer = end_within(limit_s, 128 + signum)

    @property
    def is_requested(self) -> bool:
        return self._request is not None

    def check(self) -> None:
        if self._request is not None:
            self._raised = True
            raise self._request

    def check_wrapped(self) -> None:
        """Call it on any other exception: other people's code may have wrapped ours into one of its own."""
        if self._raised:
            self.check()

    @contextmanager
    def protected(self) -> Iterator[None]:
        """What is begun inside is finished; a stop waits."""
        if not self._protected:
            self.check()
        with self.shielded():
            yield
        if not self._protected:
            self.check()

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """The same for what must be done even after a stop: saving, cleaning up."""
        self._protected += 1
        try:
            yield
        finally:
            self._protected -= 1

    @contextmanager
    def guard(self, leave: Callable[[RunStopped], None]) -> Iterator[None]:
        """Run the body; when it is told to stop, `leave` runs before RunStopped goes on."""
        with self:
            self._guarding = True
            try:
                try:
                    self.check()
                    yield
                except Exception:  # (not a fault boundary: it goes on, or what caused it does)
                    self.check_wrapped()
                    raise
            except RunStopped as stop:
                with self.shielded():
                    leave(stop)
                raise
            finally:
                self._guarding = False

    def step_took(self, seconds: float, save_s: float = 0.0) -> None:
        """After each step: is there time for another one and a save before the instance is taken away? `save_s`: the
        longest save so far."""
        self._longest_step_s = max(self._longest_step_s, seconds)
        if self._expires_at is None:
            return
        left_s = self._expires_at - time.time()
        if left_s <= max(SAVE_ROOM_S, save_s) + self._longest_step_s + self._redundant_s:
            self.request(signal.SIGTERM, f"this instance is taken away in {left_s:.0f} s")


class Stoppable(Protocol):
    stopping: StopSignals

    def _save_and_leave(self, stop: RunStopped) -> None: ...


T = TypeVar("T", bound=Stoppable)


def stoppable(method: Callable[[T], None]) -> Callable[[T], None]:
    """The method runs under the guard of its object's `stopping`."""

    @functools.wraps(method)
    def guarded(trainer: T) -> None:
        with trainer.stopping.guard(trainer._save_and_leave):
            method(trainer)

    return guarded


def expiration_time(environ: Mapping[str, str]) -> float | None:
    """When the capacity block ends, in seconds since 1970, if the environment says so."""
    for name in EXPIRATION_VARIABLES:
        if text := environ.get(name):
            try:
                return float(text)
            except ValueError:
                log.warning("%s=%r is not a time in seconds since 1970 and is ignored", name, text)
    return None


@contextmanager
def ends_on_interrupt() -> Iterator[None]:
    """For what comes before a run takes signals in hand: a Ctrl-C ends the process even where a library drops it, as
    Python itself does in a destructor."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    timers: list[threading.Timer] = []

    def interrupt(signum: int, frame: FrameType | None) -> None:
        timers.append(end_within(NOTHING_TO_SAVE_S, 128 + signum))
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for timer in timers:
            timer.cancel()


def end_within(limit_s: float, exit_code: int) -> threading.Timer:
    """End this process with the code if it is still there after so long; says where it was."""

    def end() -> None:
        log.error("stopping took longer than %g s; ending as it is, without a further save", limit_s)
        faulthandler.dump_traceback(sys.__stderr__ or 2)
        os._exit(exit_code)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    return timer
