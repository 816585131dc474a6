"""CheckpointSaver: when a save is asked for, who writes what, in which thread, and what happens when it fails.

With `trainer.async_save` the workers copy their state and write it beside the next steps; a thread here waits for them,
publishes, thins out, and hands the result to the uploader. One save is under way at a time. A save that fails (disk
full, no permission, a disk that hangs) leaves nothing behind and costs that save, not the run; only the last one of a
run must succeed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from podium.checkpoint.remote import Uploader
from podium.checkpoint.remote_store import step_of
from podium.checkpoint.sharded import find_missing, not_shared
from podium.checkpoint.store import CheckpointStore, Found
from podium.config.schema import TrainerConfig
from podium.errors import CheckpointError, WorkerDied, WorkerTimeout
from podium.stop_points import stop_point
from podium.trainer.recorder import Recorder
from podium.trainer.resume import ResumePoint

_LOOK_S = 0.1
_LEAVE_LIMIT_S = 30.0
_SAY_AFTER_S = 30.0
_ARRIVE_LIMIT_S = 10.0
"""Until what another node wrote is seen here, on a file system that keeps an old view for a while."""


class CheckpointSaver:
    def __init__(
        self, store: CheckpointStore, recorder: Recorder, uploader: Uploader | None, config: TrainerConfig
    ) -> None:
        self.store, self.recorder, self.uploader = store, recorder, uploader
        self.background, self.limit_s = config.async_save, config.worker_timeout_s
        self.saved_step: int | None = None
        """The newest step this run has published or resumed from."""
        self.longest_s = 0.0
        """From the begin of a save until it was published."""
        self._thread: threading.Thread | None = None
        self._under_way = 0
        self._given_up = False
        """Nobody waits any longer for the save under way; should it arrive after all, it counts."""
        self._failure: tuple[int, BaseException] | None = None
        self._leaving = threading.Event()

    def save(self, point: ResumePoint, metrics: dict[str, float], groups: Sequence[Any]) -> None:
        """Save the point and what the workers hold now; returns when the training may go on."""
        step = point.step
        start = time.perf_counter()
        if not self.wait():
            late = CheckpointError(f"the disk still writes the checkpoint of step {self._under_way}")
            self._failed(step, None, late)
            return
        try:
            staging = self.store.stage(step)
        except OSError as error:
            self._failed(step, None, error)
            return
        failure = self._begin(point, staging, groups)
        work = (point, staging, metrics, groups, failure, start)
        if self.background:
            self._under_way, self._given_up = step, False
            self._thread = threading.Thread(target=self._finish, args=work, name="checkpoint-publisher", daemon=True)
            self._thread.start()
        else:
            self._finish(*work)
        if failure is None:
            self.recorder.save_time(step, time.perf_counter() - start)

    def _begin(self, point: ResumePoint, staging: Path, groups: Sequence[Any]) -> Exception | None:
        """Write what this process has, and let the workers write (or begin to); what went wrong with it."""
        try:
            for group in groups:
                group.save_checkpoint(str(staging), background=self.background)
            point.write(staging)
        except (WorkerDied, WorkerTimeout):
            self.store.discard(staging)
            raise
        except Exception as error:  # noqa: BLE001 (fault boundary: a save that fails costs the save, not the run)
            return error
        except BaseException:
            self.store.discard(staging)
            raise
        return None

    def _finish(
        self,
        point: ResumePoint,
        staging: Path,
        metrics: dict[str, float],
        groups: Sequence[Any],
        failure: Exception | None,
        start: float,
    ) -> None:
        """Wait for the workers' files and publish them; `failure`: what already went wrong."""
        step = point.step
        try:
            if self.background:
                self._await_workers(groups, failure)
            if failure is not None:
                raise failure
            self._require_all_files(staging, len(groups))
            self.recorder.log.flush()  # a published step whose metrics only wait in memory would lose them in a crash
            path = self.store.publish(staging, step, point.state, metrics)
        except Exception as error:  # noqa: BLE001 (fault boundary: a save that fails costs the save, not the run)
            self._failed(step, staging, error)
            return
        except BaseException as error:  # not for us, but what is half written is not left behind
            self._failed(step, staging, error)
            raise
        self.saved_step, self._failure = step, None
        self.longest_s = max(self.longest_s, time.perf_counter() - start)
        self.recorder.checkpoint(step, path)
        if self.uploader is not None:
            self.uploader.add(path)
        self.store.retain(in_use=self.uploader.waiting() if self.uploader else ())

    def _await_workers(self, groups: Sequence[Any], failure: Exception | None) -> None:
        """Until each group has written its part or failed: nothing is removed while somebody still writes into it."""
        waiting = list(groups)
        while waiting:
            for group in list(waiting):
                try:
                    if not all(group.checkpoint_written()):
                        continue
                except Exception as error:  # noqa: BLE001 (fault boundary: it is raised when all are done)
                    failure = failure or error
                waiting.remove(group)
            if waiting and self._leaving.wait(_LOOK_S):
                raise CheckpointError("the run ended while the save was under way")
        if failure is not None:
            raise failure

    def _require_all_files(self, staging: Path, num_parts: int) -> None:
        """What the ranks wrote must be here, or the checkpoint would not load."""
        deadline = time.monotonic() + _ARRIVE_LIMIT_S
        while missing := find_missing(staging, num_parts):
            if time.monotonic() >= deadline or self._leaving.wait(_LOOK_S):
                raise not_shared(staging, missing)

    def wait(self) -> bool:
        """Until no save is under way, or one takes longer than `limit_s`: then it counts as failed, and False."""
        thread, start, said = self._thread, time.monotonic(), False
        while thread is not None and thread.is_alive():
            stop_point()
            waited_s = time.monotonic() - start
            if self._given_up:
                return False
            if not said and waited_s > _SAY_AFTER_S:
                said = True
                self.recorder.waits_for_checkpoint(self._under_way, self.store.folder)
            if waited_s > self.limit_s:
                self._give_up()
                return False
            thread.join(_LOOK_S)
        self._thread = None
        return True

    def _give_up(self) -> None:
        self._given_up = True
        slow = CheckpointError(
            f"it was not written to {self.store.folder} within {self.limit_s:g} s (trainer.worker_timeout_s): the disk "
            "hangs or is very slow. No further save begins before this one ends"
        )
        self._failed(self._under_way, None, slow)

    def finish(self) -> None:
        """The end of a run that went well: everything is on the disk, and uploaded, or this raises."""
        self.wait()
        if self._failure is not None:
            step, error = self._failure
            newest = self.store.newest(deep=False).path
            left = f"The newest complete one is {newest}" if newest else "There is no complete one"
            raise CheckpointError(
                f"the last checkpoint, of step {step}, could not be saved: {error}. {left}; mend that (make room, or "
                "check the disk) and run the same command again."
            ) from error
        if self.uploader is not None:
            self.uploader.finish()

    def leave(self) -> None:
        """The workers are about to go: a save that is under way is dropped."""
        self._leaving.set()

    def close(self) -> None:
        """End the threads; after the workers are gone."""
        self._leaving.set()
        if self._thread is not None and not self._given_up:
            self._thread.join(_LEAVE_LIMIT_S)
        if self.uploader is not None:
            self.uploader.close()

    def _failed(self, step: int, staging: Path | None, error: BaseException) -> None:
        if staging is not None:
            self.store.discard(staging)
        self._failure = (step, error)
        self.recorder.checkpoint_failed(step, error)


def open_store(store: CheckpointStore, uploader: Uploader | None, resume_mode: str) -> Found:
    """Clean up after a killed run, fetch what only the remote store has of this run, and find where to go on."""
    store.clean()
    if uploader is None:
        return store.find(resume_mode)
    if resume_mode in ("auto", "must"):
        broken = uploader.fetch(store)
        found = store.find(resume_mode)
        return Found(found.path, found.broken | {Path(f"global_step_{s}"): fault for s, fault in broken.items()})
    found = store.find(resume_mode)
    is_own = found.path is not None and found.path.resolve() in (path.resolve() for path in store.steps().values())
    uploader.leave_way(store, after=step_of(found.path.resolve()) if found.path and is_own else -1)
    return found


def next_folder(parent: Path) -> Path:
    """A numbered folder inside `parent` that does not hold checkpoints yet."""
    number = max(1, sum(1 for _ in parent.glob("*")))
    while (parent / str(number) / "checkpoints").exists():
        number += 1
    return parent / str(number)
