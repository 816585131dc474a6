"""RemoteStore: the checkpoints of a run below a URL.

A checkpoint's manifest is written last and removed first, so that a folder with a manifest is whole; what has none, or
a manifest that does not hold, is not a checkpoint. Files travel several at once where the file system can, and in
parts when they are large. When to upload, and how often to try, is the uploader's matter.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fsspec.asyn import AsyncFileSystem

from podium.checkpoint import manifest
from podium.checkpoint.file_systems import (
    Progress,
    each,
    how_to_get_in,
    open_url,
    patiently,
    what_failed,
    without_login,
)
from podium.checkpoint.store import CheckpointStore, Retention
from podium.errors import CheckpointError

T = TypeVar("T")
SETTING = "trainer.default_hdfs_dir"
_NAME = re.compile(r"global_step_(\d+)$")
_FILES_AT_ONCE = 4
_STALL_S = 300.0
"""Nothing moved for so long: the file system counts as gone. Ten parts of 50 MB at once arrive in time at 14 Mbit/s."""


class RemoteStore:
    def __init__(self, url: str, stall_s: float = _STALL_S) -> None:
        self.fs, self.root = open_url(url, SETTING)
        self.url, self.progress, self._stall_s = without_login(url), Progress(), stall_s
        self._at_once = _FILES_AT_ONCE if "hdfs" in url.partition("://")[0] else 1
        self._has_folders = not isinstance(self.fs, AsyncFileSystem)  # buckets have none, and rights to make none
        self._prepared: Path | None = None
        """The checkpoint whose place was made empty, so that what is there came from a try to upload it."""

    def _patiently(self, work: Callable[[], T], name: str) -> T:
        self.progress = Progress()
        return patiently(work, self.progress, self._stall_s, name)

    # ---- reading

    def check(self) -> None:
        """Whether one can write there; the answer belongs before the training, not after it."""
        probe = f"{self.root}/.podium"
        self._patiently(lambda: self._write(probe, b"podium"), f"writing to {self.url}")

    def steps(self) -> list[int]:
        """The steps whose upload was finished, in order."""
        return self._patiently(self._steps, f"listing {self.url}")

    def own_steps(self, store: CheckpointStore) -> list[int]:
        """Those of the run in the local store: not the ones of a way that it has left."""
        left = store.left_way()
        return [step for step in self.steps() if left is None or step <= left]

    def _steps(self) -> list[int]:
        return [step for step in self._folders() if self._bytes(f"{self._place(step)}/{manifest.NAME}") is not None]

    def fetch(self, store: CheckpointStore) -> tuple[Path | None, dict[int, str]]:
        """Bring the newest complete checkpoint that is newer than the local ones; and what is wrong with others."""
        local = store.newest().path
        have = step_of(local) if local else -1
        broken: dict[int, str] = {}
        for step in sorted((step for step in self.own_steps(store) if step > have), reverse=True):
            staging = store.stage(step)
            name = f"fetching global_step_{step} from {self.url}"
            try:
                missing = self._patiently(partial(self._download, step, staging), name)
                if (fault := missing or manifest.find_fault(staging)) is None:
                    return store.adopt(staging, step), broken
                broken[step] = fault
            finally:
                store.discard(staging)
        return None, broken

    def _download(self, step: int, folder: Path) -> str | None:
        """Fill the folder; what could not be had, or None."""
        place = self._place(step)
        try:
            self.fs.get_file(f"{place}/{manifest.NAME}", str(folder / manifest.NAME))
            names = list(manifest.read_manifest(folder)["files"])
            for name in names:
                if not (folder / name).resolve().is_relative_to(folder.resolve()):
                    raise HostileManifest(f"the manifest in {self.url} names {name!r}, outside its folder; refused")
            for name in names:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
            self._transfer("get", [f"{place}/{name}" for name in names], [str(folder / name) for name in names])
        except FileNotFoundError as error:
            return f"a file is missing: {error}"
        except HostileManifest:
            raise
        except CheckpointError as error:
            return str(error)
        return None

    # ---- writing

    def upload(self, checkpoint: Path, again: bool = False) -> None:
        """Copy a checkpoint there; `again`: go on where the last try of this one ended."""
        self._patiently(lambda: self._upload(checkpoint, again), f"uploading to {self.url}")

    def _upload(self, checkpoint: Path, again: bool) -> None:
        step, progress = step_of(checkpoint), self.progress
        place = self._place(step)
        if not (again and self._prepared == checkpoint):
            self._prepare(checkpoint)
        files = {name: facts["bytes"] for name, facts in manifest.read_manifest(checkpoint)["files"].items()}
        self._put(checkpoint, place, self._missing(place, files))
        if missing := self._missing(place, files):
            raise CheckpointError(
                f"{missing[0]} arrived at {self.url} with another size than {files[missing[0]]} bytes"
            )
        progress.relative_update(0)  # nothing is made complete by an upload that was given up
        self._put(checkpoint, place, [manifest.NAME])
        self._write(f"{self.root}/latest", checkpoint.name.encode())

    def _prepare(self, checkpoint: Path) -> None:
        """Only the run's own earlier steps are there afterwards."""
        self._prepared, local, step = None, CheckpointStore(checkpoint.parent), step_of(checkpoint)
        left = local.left_way()
        self._set_aside(after=step if left is None else min(left, step))
        local.forget_left_way()
        self._remove(step)
        self._prepared = checkpoint

    def _missing(self, place: str, files: dict[str, int]) -> list[str]:
        self.fs.invalidate_cache()
        found = {str(path): facts["size"] for path, facts in self.fs.find(place, detail=True).items()}
        sizes = {path.partition(f"{place.lstrip('/')}/")[2]: size for path, size in found.items()}
        return [name for name, size in files.items() if sizes.get(name) != size]

    def _put(self, folder: Path, place: str, names: Iterable[str]) -> None:
        names = list(names)
        self._transfer("put", [str(folder / name) for name in names], [f"{place}/{name}" for name in names])

    def _transfer(self, way: str, sources: list[str], targets: list[str]) -> None:
        if not sources:
            return
        if self._has_folders:
            copy, progress = getattr(self.fs, f"{way}_file"), self.progress
            each(lambda pair: copy(*pair, callback=progress), zip(sources, targets, strict=True), self._at_once)
        else:
            getattr(self.fs, way)(sources, targets, callback=self.progress, batch_size=_FILES_AT_ONCE)

    def retain(self, retention: Retention) -> list[int]:
        """Remove what `retention` does not keep, and what older uploads left unfinished."""
        return self._patiently(lambda: self._retain(retention), f"thinning out {self.url}")

    def _retain(self, retention: Retention) -> list[int]:
        complete = self._steps()
        torn = [step for step in self._folders() if step not in complete and step < max(complete, default=0)]
        kept: set[int | None] = set(
            complete[-max(retention.max_to_keep, 1) :] if retention.max_to_keep is not None else complete
        )
        if len(kept) < len(complete) and retention.best_metric:
            kept.add(self._best(complete, retention))
        removed = [*torn, *(step for step in complete if step not in kept)]
        for step in removed:
            self._remove(step)
        return removed

    def _best(self, steps: list[int], retention: Retention) -> int | None:
        metrics: dict[int, Mapping[str, Any]] = {}
        for step in steps:
            place = f"{self._place(step)}/{manifest.NAME}"
            with contextlib.suppress(CheckpointError, UnicodeDecodeError):  # damaged there
                facts = manifest.parse_manifest(self.fs.cat_file(place).decode("utf-8"), place)
                metrics[step] = facts.get("metrics", {})
        return retention.best(metrics)

    def _remove(self, step: int) -> None:
        place = self._place(step)
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm(f"{place}/{manifest.NAME}")  # first, so that a half-removed one does not count
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm(place, recursive=True)
        self.fs.invalidate_cache()
        self.progress.relative_update(0)

    def _set_aside(self, after: int) -> None:
        """Move later ones to previous/: the run went another way since that step."""
        later = [other for other in self._folders() if other > after]
        if not later:
            return
        aside = f"{self.root}/previous"
        number = 1 + max((int(name) for name in self._names(aside) if name.isdigit()), default=0)
        for other in later:
            self._move(self._place(other), f"{aside}/{number}/global_step_{other}")

    def _move(self, source: str, target: str) -> None:
        if self._has_folders:
            self.fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            self.fs.mv(source, target, recursive=True)
        else:
            for path in self.fs.find(source):
                self.fs.cp_file(path, target + str(path).partition(source)[2])
                self.progress.relative_update(0)
            self.fs.rm(source, recursive=True)
        self.fs.invalidate_cache()

    def _write(self, path: str, content: bytes) -> None:
        if self._has_folders:
            self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self.fs.pipe_file(path, content)

    # ---- names

    def _folders(self) -> list[int]:
        """Every step that has a folder, complete or not, in order."""
        return sorted(int(match.group(1)) for name in self._names(self.root) if (match := _NAME.match(name)))

    def _names(self, folder: str) -> list[str]:
        # not isdir or exists: some file systems answer False when the server does not answer at all
        self.fs.invalidate_cache()
        try:
            return [str(path).rstrip("/").rpartition("/")[2] for path in self.fs.ls(folder, detail=False)]
        except FileNotFoundError:
            return []

    def _bytes(self, path: str) -> int | None:
        try:
            return int(self.fs.info(path)["size"])
        except FileNotFoundError:
            return None

    def _place(self, step: int) -> str:
        return f"{self.root}/global_step_{step}"

    def explain(self, error: BaseException) -> str:
        """What went wrong with this place and where to look; without secrets."""
        return f"{SETTING}={self.url}: {what_failed(error, self.fs)}. {how_to_get_in(self.url)}"


class HostileManifest(CheckpointError):
    """A manifest that would write outside its folder."""


def step_of(checkpoint: Path) -> int:
    match = _NAME.match(checkpoint.name)
    assert match is not None, f"{checkpoint} is not named like a checkpoint"
    return int(match.group(1))
