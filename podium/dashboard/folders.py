"""Which run folders there are under one root, and which of their files may be opened.

A run is a folder with a `metrics.jsonl` or an `events.jsonl`. Its id is its path below the root; requests name runs by
id and never by path, so a request cannot lead anywhere else. A link that leaves the root is as good as absent.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from podium.errors import ConfigError

MARKS = frozenset({"metrics.jsonl", "events.jsonl"})
MAX_DEPTH = 4


class RunsFolder:
    def __init__(self, root: str | Path) -> None:
        path = Path(root)
        if not path.is_dir():
            raise ConfigError(
                f"{path} is not a folder; give the folder that holds the runs (podium train makes runs/), or one run"
            )
        self.root = path.resolve()

    def scan(self) -> dict[str, Path]:
        """Every run below the root by id; the root itself, under its own name, when it is a run."""
        if self._is_run(self.root):
            return {self.root.name or "run": self.root}
        found: dict[str, Path] = {}
        self._descend(self.root, 1, found)
        return found

    def file(self, run: Path, *parts: str) -> Path | None:
        """A regular file of a run, or None: absent, or elsewhere by way of a link."""
        path = run.joinpath(*parts)
        try:
            real = path.resolve(strict=True)
            if real.is_relative_to(self.root) and stat.S_ISREG(real.stat().st_mode):
                return real
        except (OSError, RuntimeError):  # RuntimeError: links in a circle
            pass
        return None

    def folder(self, run: Path, name: str) -> Path | None:
        """A folder of a run, or None."""
        try:
            real = (run / name).resolve(strict=True)
        except (OSError, RuntimeError):
            return None
        return real if real.is_dir() and real.is_relative_to(self.root) else None

    def _descend(self, folder: Path, depth: int, found: dict[str, Path]) -> None:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries:
            path = Path(entry.path)
            if entry.name.startswith(".") or not self._is_inside(entry):
                continue
            if self._is_run(path):
                found[path.relative_to(self.root).as_posix()] = path
            elif depth < MAX_DEPTH:
                self._descend(path, depth + 1, found)

    def _is_inside(self, entry: os.DirEntry[str]) -> bool:
        """A real folder. Links are not followed: one inside the root would show a run twice."""
        try:
            return entry.is_dir(follow_symlinks=False)
        except OSError:
            return False

    def _is_run(self, folder: Path) -> bool:
        return any(self.file(folder, name) is not None for name in MARKS)
