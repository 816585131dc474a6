"""CheckpointSaver: when a save is asked for, who writes what, in which thread, and what happens when it fails.

With `trainer.async_save` the workers copy their state and write it beside the next steps; a thread here waits for them,
publishes, thins out, and hands the result to the uploader. One save is under way at a time. A save that fails (disk
full, no permission) leaves nothing behind and costs that save, not the run; only the last one of a run must succeed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from podium.checkpoint.remote import Uploader
from podium.checkpoint.remote_store import step_of
from podium.checkpoint.store import CheckpointStore, Found
from podium.errors import CheckpointError, WorkerDied, WorkerTimeout
from podium.trainer.recorder import Recorder
from podium.trainer.resume import ResumePoint

_LOOK_S = 0.1
_LEAVE_LIMIT_S = 30.0


class CheckpointSaver:
    def __init__(self, store: CheckpointStore, recorder: Recorder, uploader: Uploader | None, background: bool) -> None:
        self.store, self.recorder, self.uploader, self.background = store, recorder, uploader, background
        self.saved_step: int | None = None
        """The newest step this run has published or resumed from."""
        self._thread: threading.Thread | None = None
        self._failure: tuple[int, BaseException] | None = None
        self._leaving = threading.Event()

    def save(self, point: ResumePoint, metrics: dict[str, float], groups: Sequence[Any]) -> None:
        """Save the point and what the workers hold now; returns when the training may go on."""
        step = point.step
        start = time.perf_counter()
        self.wait()
        staging: Path | None = None
        try:
            staging = self.store.stage(step)
            for group in groups:
                group.save_checkpoint(str(staging), background=self.background)
            point.write(staging)
        except (WorkerDied, WorkerTimeout):
            self._discard(staging)
            raise
        except Exception as error:  # noqa: BLE001 (fault boundary: a save that fails costs the save, not the run)
            self._failed(step, staging, error)
            return
        work = (point, staging, metrics, groups)
        if self.background:
            self._thread = threading.Thread(target=self._finish, args=work, name="checkpoint-publisher", daemon=True)
            self._thread.start()
        else:
            self._finish(*work)
        self.recorder.save_time(step, time.perf_counter() - start)

    def _finish(self, point: ResumePoint, staging: Path, metrics: dict[str, float], groups: Sequence[Any]) -> None:
        """Wait for the workers' files and publish them."""
        step = point.step
        try:
            while self.background and not all(done for group in groups for done in group.checkpoint_written()):
                if self._leaving.wait(_LOOK_S):
                    raise CheckpointError("the run ended while the save was under way")
            self.recorder.log.flush()  # a published step whose metrics only wait in memory would lose them in a crash
            path = self.store.publish(staging, step, point.state, metrics)
        except Exception as error:  # noqa: BLE001 (fault boundary: a save that fails costs the save, not the run)
            self._failed(step, staging, error)
            return
        self.saved_step, self._failure = step, None
        self.recorder.checkpoint(step, path)
        if self.uploader is not None:
            self.uploader.add(path)
        self.store.retain(in_use=self.uploader.waiting() if self.uploader else ())

    def wait(self) -> None:
        """Until no save is under way."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def finish(self) -> None:
        """The end of a run that went well: everything is on the disk, and uploaded, or this raises."""
        self.wait()
        if self._failure is not None:
            step, error = self._failure
            raise CheckpointError(
                f"the last checkpoint, of step {step}, could not be saved: {error}. The newest complete one is "
                f"{self.store.newest(deep=False).path}; make room and run the same command again."
            ) from error
        if self.uploader is not None:
            self.uploader.finish()

    def leave(self) -> None:
        """The workers are about to go: a save that is under way is dropped."""
        self._leaving.set()

    def close(self) -> None:
        """End the threads; after the workers are gone."""
        self._leaving.set()
        if self._thread is not None:
            self._thread.join(_LEAVE_LIMIT_S)
        if self.uploader is not None:
            self.uploader.close()

    def _failed(self, step: int, staging: Path | None, error: Exception) -> None:
        self._discard(staging)
        self._failure = (step, error)
        self.recorder.checkpoint_failed(step, error)

    def _discard(self, staging: Path | None) -> None:
        if staging is not None:
            self.store.discard(staging)


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
