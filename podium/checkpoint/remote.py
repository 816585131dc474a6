"""Checkpoints on another file system: `trainer.default_hdfs_dir`, any URL that fsspec knows (hdfs, s3, gs, file, ...).

A thread uploads each published checkpoint, its manifest last, so that a folder with a manifest is whole there too. A
run that starts on a machine without the checkpoint fetches the newest complete one. An upload that fails is tried
again, then reported; training never waits for it, except at the end of a run.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from podium.checkpoint import manifest
from podium.checkpoint.store import CheckpointStore
from podium.errors import CheckpointError

log = logging.getLogger(__name__)

_NAME = re.compile(r"global_step_(\d+)$")
_TRIES = 3
_PAUSE_S = 1.0


class RemoteStore:
    """The checkpoints below a URL."""

    def __init__(self, url: str) -> None:
        import fsspec

        try:
            self.fs, self.root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise CheckpointError(f"trainer.default_hdfs_dir={without_login(url)} cannot be used: {error}") from error
        self.url = without_login(url)

    def steps(self) -> list[int]:
        """The steps whose upload was finished, in order."""
        if not self.fs.isdir(self.root):
            return []
        self.fs.invalidate_cache()
        names = [str(name).rstrip("/").rsplit("/", 1)[-1] for name in self.fs.ls(self.root, detail=False)]
        found = [int(match.group(1)) for name in names if (match := _NAME.match(name))]
        return sorted(step for step in found if self.fs.exists(f"{self._place(step)}/{manifest.NAME}"))

    def upload(self, checkpoint: Path) -> None:
        match = _NAME.match(checkpoint.name)
        assert match is not None, f"{checkpoint} is not named like a checkpoint"
        place = self._place(int(match.group(1)))
        if self.fs.exists(f"{place}/{manifest.NAME}"):
            self.fs.rm(f"{place}/{manifest.NAME}")
        for name in [*manifest.read_manifest(checkpoint)["files"], manifest.NAME]:
            target = f"{place}/{name}"
            self.fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            self.fs.put_file(str(checkpoint / name), target)
        self.fs.pipe_file(f"{self.root}/latest", checkpoint.name.encode())

    def remove(self, step: int) -> None:
        place = self._place(step)
        self.fs.rm(f"{place}/{manifest.NAME}")  # first, so that a half-removed one does not count
        self.fs.rm(place, recursive=True)

    def fetch(self, store: CheckpointStore) -> tuple[Path | None, dict[int, str]]:
        """Bring the newest complete checkpoint that is newer than the local ones; and what is wrong with others."""
        local = store.newest().path
        have = int(local.name.rsplit("_", 1)[1]) if local else -1
        broken: dict[int, str] = {}
        for step in sorted((step for step in self.steps() if step > have), reverse=True):
            staging = store.stage(step)
            try:
                self._download(step, staging)
                if (fault := manifest.find_fault(staging)) is None:
                    return store.adopt(staging, step), broken
                broken[step] = fault
            finally:
                store.discard(staging)
        return None, broken

    def _download(self, step: int, folder: Path) -> None:
        place = self._place(step)
        self.fs.get_file(f"{place}/{manifest.NAME}", str(folder / manifest.NAME))
        for name in manifest.read_manifest(folder)["files"]:
            target = (folder / name).resolve()
            if not target.is_relative_to(folder.resolve()):
                raise CheckpointError(f"the manifest in {self.url} names {name!r}, outside its folder; it is refused")
            target.parent.mkdir(parents=True, exist_ok=True)
            if self.fs.exists(f"{place}/{name}"):
                self.fs.get_file(f"{place}/{name}", str(target))

    def _place(self, step: int) -> str:
        return f"{self.root.rstrip('/')}/global_step_{step}"


class Uploader:
    """Uploads in a thread, one checkpoint after the other."""

    def __init__(
        self,
        remote: RemoteStore,
        report: Callable[..., None],
        max_to_keep: int | None = None,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self.remote, self._report, self._max_to_keep, self._pause_s = remote, report, max_to_keep, pause_s
        self._queue: queue.Queue[Path | None] = queue.Queue()
        self._waiting: list[Path] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="checkpoint-uploader", daemon=True)
        self._thread.start()

    def add(self, checkpoint: Path) -> None:
        self._waiting.append(checkpoint)
        self._queue.put(checkpoint)

    def waiting(self) -> list[Path]:
        """Checkpoints that must not be removed yet."""
        return list(self._waiting)

    def finish(self) -> None:
        """Wait until everything is uploaded or given up."""
        self._queue.join()

    def close(self) -> None:
        """Give up what is still waiting."""
        self._closing.set()
        self._queue.put(None)

    def _work(self) -> None:
        while (checkpoint := self._queue.get()) is not None:
            try:
                self._upload(checkpoint)
            finally:
                self._waiting.remove(checkpoint)
                self._queue.task_done()

    def _upload(self, checkpoint: Path) -> None:
        for attempt in range(1, _TRIES + 1):
            if self._closing.is_set():
                return
            start = time.monotonic()
            try:
                self.remote.upload(checkpoint)
                self._thin_out()
            except Exception as error:  # noqa: BLE001 (fault boundary: other people's file systems)
                log.warning("upload of %s, attempt %d of %d: %s", checkpoint.name, attempt, _TRIES, error)
                if attempt == _TRIES:
                    self._report("upload_failed", path=str(checkpoint), url=self.remote.url, reason=str(error))
                self._closing.wait(self._pause_s * attempt)
            else:
                seconds = round(time.monotonic() - start, 3)
                self._report("checkpoint_uploaded", path=str(checkpoint), url=self.remote.url, seconds=seconds)
                return

    def _thin_out(self) -> None:
        for step in self.remote.steps()[: -self._max_to_keep] if self._max_to_keep else ():
            self.remote.remove(step)


def without_login(url: str) -> str:
    """The URL without user and password."""
    return re.sub(r"//[^/@]*@", "//", url)


def make_uploader(url: str, report: Callable[..., Any], max_to_keep: int | None) -> Uploader | None:
    return Uploader(RemoteStore(url), report, max_to_keep) if url else None
