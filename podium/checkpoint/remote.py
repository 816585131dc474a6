"""Checkpoints on another file system: `trainer.default_hdfs_dir`, any URL that fsspec knows (s3, gs, hdfs, file, ...).

A thread uploads each published checkpoint. A run that starts on a machine without the checkpoint fetches the newest
complete one; one that starts with a checkpoint that never arrived there sends it. An upload that fails is tried again,
then reported; training never waits for it. The end of a run does, and says so when the last one is not there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from podium.checkpoint.file_systems import Stalled, is_refusal, what_failed, without_login
from podium.checkpoint.remote_store import SETTING, HostileManifest, RemoteStore, step_of
from podium.checkpoint.store import CheckpointStore, Retention
from podium.errors import CheckpointError
from podium.stop_points import LOOK_S, stop_point

__all__ = ["RemoteStore", "Uploader", "make_uploader", "without_login"]

log = logging.getLogger(__name__)

_TRIES = 4
_PAUSE_S = 1.0
_PAUSE_FACTOR = 4.0  # 1, 4 and 16 s between the tries: a server that is started again is met
_SAY_AFTER_S = 2.0


class Uploader:
    """Uploads in a thread, one checkpoint after the other."""

    def __init__(
        self,
        remote: RemoteStore,
        report: Callable[..., None],
        retention: Retention | None = None,
        pause_s: float = _PAUSE_S,
        tries: int = _TRIES,
    ) -> None:
        self.remote, self._report, self._retention = remote, report, retention or Retention()
        self._pause_s, self._tries = pause_s, tries
        self._waiting: list[Path] = []
        self._changed = threading.Condition()
        self._closing = self._closed = False
        self._lost: tuple[Path, str] | None = None
        """The newest checkpoint that was given up, and why, unless a later one arrived."""
        self._thread = threading.Thread(target=self._work, name="checkpoint-uploader", daemon=True)
        self._thread.start()

    def add(self, checkpoint: Path) -> None:
        with self._changed:
            self._waiting.append(checkpoint)
            self._changed.notify_all()

    def waiting(self) -> list[Path]:
        """Checkpoints that must not be removed yet."""
        return list(self._waiting)

    def finish(self) -> None:
        """Wait until everything is uploaded; raises when the newest is not."""
        self._drain()
        if self._lost is not None:
            path, reason = self._lost
            raise CheckpointError(
                f"{path} is saved, but could not be uploaded: {reason}. Copy it from there, or run the same command "
                f"again when that is mended: it uploads what is missing."
            )

    def close(self) -> None:
        """Wait until the newest is uploaded or given up, and end the thread. Older ones that still wait are skipped."""
        self._closing = True
        self._drain()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def fetch(self, store: CheckpointStore) -> dict[int, str]:
        """Bring a newer checkpoint into the local store, or send what is missing there; what is wrong with others."""
        try:
            self._try(lambda again: self.remote.check(), "looking at")
            broken: dict[int, str] = self._try(lambda again: self.remote.fetch(store)[1], "fetching from")
            arrived = self._try(lambda again: self.remote.own_steps(store), "listing")
        except HostileManifest:
            raise
        except Exception as error:
            if store.newest(deep=False).path is None and store.left_way() is None:
                raise CheckpointError(
                    f"{self.remote.explain(error)}. There is no checkpoint here to go on from, and starting anew "
                    f"might repeat a run that is there; to do so without it, set {SETTING}=''."
                ) from error
            self._report("remote_failed", url=self.remote.url, reason=self.remote.explain(error))
            log.warning("%s; going on with what is here", self.remote.explain(error))
            return {}
        newest = store.newest(deep=False).path
        if newest is not None and step_of(newest) > max(arrived, default=-1):
            self.add(newest)
        return broken

    def leave_way(self, store: CheckpointStore, after: int) -> None:
        """The run does not go on from what is there after this step: see that it can write there, and note it."""
        try:
            self._try(lambda again: self.remote.check(), "looking at")
        except Exception as error:
            raise CheckpointError(
                f"{self.remote.explain(error)}. No checkpoint of this run would arrive there; to train without it, "
                f"set {SETTING}=''."
            ) from error
        store.leave_way(after)

    # ---- the thread

    def _drain(self) -> None:
        say_at: float | None = time.monotonic() + _SAY_AFTER_S
        with self._changed:
            while self._waiting:
                stop_point()
                if say_at is not None and time.monotonic() >= say_at:
                    names = ", ".join(path.name for path in self._waiting)
                    log.warning("waiting until %s arrives at %s", names, self.remote.url)
                    say_at = None
                self._changed.wait(LOOK_S)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                checkpoint, newer = self._waiting[0], len(self._waiting) - 1
            try:
                self._upload(checkpoint, newer)
            finally:
                with self._changed:
                    self._waiting.remove(checkpoint)
                    self._changed.notify_all()

    def _upload(self, checkpoint: Path, newer: int) -> None:
        details = {"path": str(checkpoint), "url": self.remote.url}
        if self._is_outdated(newer):
            self._report("upload_skipped", **details, reason=f"{newer} newer ones are waiting")
            return
        start = time.monotonic()
        try:
            self._try(lambda again: self.remote.upload(checkpoint, again), "uploading to")
        except Exception as error:  # noqa: BLE001 (fault boundary: other people's file systems)
            self._lost = (checkpoint, self.remote.explain(error))
            self._report("upload_failed", **details, reason=self.remote.explain(error))
            return
        self._lost = None
        self._report("checkpoint_uploaded", **details, seconds=round(time.monotonic() - start, 3))
        try:
            self._try(lambda again: self.remote.retain(self._retention), "thinning out")
        except Exception as error:  # noqa: BLE001 (fault boundary: other people's file systems)
            self._report("remote_failed", url=self.remote.url, reason=self.remote.explain(error))

    def _is_outdated(self, newer: int) -> bool:
        """Whether a checkpoint with so many newer ones behind it need not travel."""
        limit = self._retention.max_to_keep
        if self._closing or limit is None or self._retention.best_metric:
            return self._closing and newer > 0
        return newer >= (1 if self._lost else max(limit, 1))

    def _try(self, work: Callable[[bool], Any], doing: str) -> Any:
        """The result of `work(again)`, tried a few times with growing pauses."""
        for attempt in range(1, self._tries + 1):
            try:
                return work(attempt > 1)
            except Exception as error:
                reason = what_failed(error, self.remote.fs)
                log.warning("%s %s, attempt %d of %d: %s", doing, self.remote.url, attempt, self._tries, reason)
                if attempt == self._tries or is_refusal(error) or isinstance(error, HostileManifest | Stalled):
                    raise
                if self._closing and len(self._waiting) > 1:  # a newer one is what counts now
                    raise
            _pause(self._pause_s * _PAUSE_FACTOR ** (attempt - 1))
        raise AssertionError("the last attempt returns or raises")


def _pause(seconds: float) -> None:
    """A sleep that can be left."""
    end = time.monotonic() + seconds
    while (left_s := end - time.monotonic()) > 0:
        stop_point()
        time.sleep(min(LOOK_S, left_s))


def make_uploader(url: str, report: Callable[..., Any], retention: Retention | None) -> Uploader | None:
    return Uploader(RemoteStore(url), report, retention) if url else None
