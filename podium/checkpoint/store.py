"""CheckpointStore: the `checkpoints/` folder of a run.

A checkpoint is staged in a hidden folder, sealed with a manifest of checksums, and renamed; so a folder
`global_step_N` either is complete or was damaged later, which its manifest shows. `latest` names the newest. What is in
it: `trainer.json` (the controller's state) and one folder per part, written by the workers. Old ones are removed only
after a newer one is published. When to save, and in which thread, is the trainer's matter.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podium.checkpoint.manifest import find_fault, read_manifest, sync_folder, write_manifest
from podium.errors import CheckpointError

_NAME = re.compile(r"global_step_(\d+)$")
_HIDDEN = (".staging_", ".replaced_", ".removed_")
_LEFT_WAY = ".left_way"


@dataclass(frozen=True)
class Found:
    """A complete checkpoint, if there is one, and the newer ones that cannot be used with the reason."""

    path: Path | None
    broken: dict[Path, str]


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay."""

    max_to_keep: int | None = None
    """The newest so many; None: all."""
    best_metric: str | None = None
    """Also the one with the best value of this validation metric."""
    best_is_max: bool = True

    def best(self, metrics: Mapping[int, Mapping[str, Any]]) -> int | None:
        """Of the steps with these metrics the one with the best value; of equal ones the later."""
        sign = 1.0 if self.best_is_max else -1.0
        values = {step: numbers.get(self.best_metric) for step, numbers in metrics.items() if self.best_metric}
        scored = [(sign * v, step) for step, v in values.items() if isinstance(v, int | float) and math.isfinite(v)]
        return max(scored)[1] if scored else None


class CheckpointStore:
    def __init__(self, folder: Path, retention: Retention | None = None) -> None:
        self.folder, self.retention = folder, retention or Retention()

    # ---- writing

    def save(
        self,
        step: int,
        state: dict[str, Any],
        write_parts: Callable[[Path], None],
        metrics: dict[str, float] | None = None,
    ) -> Path:
        """Stage, let `write_parts(folder)` fill it, publish; nothing is left behind when that fails."""
        staging = self.stage(step)
        try:
            write_parts(staging)
            return self.publish(staging, step, state, metrics)
        except BaseException:
            self.discard(staging)
            raise

    def stage(self, step: int) -> Path:
        """A folder of its own for the parts of a new checkpoint."""
        staging = self.folder / f".staging_global_step_{step}_{uuid.uuid4().hex[:8]}"
        staging.mkdir(parents=True)
        return staging

    def publish(self, staging: Path, step: int, state: dict[str, Any], metrics: dict[str, float] | None = None) -> Path:
        """Seal a filled staging folder and give it its name; then `latest`, then what need not stay."""
        (staging / "trainer.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
        write_manifest(staging, {"step": step, "metrics": metrics or {}})
        return self.adopt(staging, step)

    def adopt(self, staging: Path, step: int) -> Path:
        """Give a sealed staging folder its name."""
        final = self.folder / f"global_step_{step}"
        if final.exists():
            replaced = self.folder / f".replaced_{final.name}"
            shutil.rmtree(replaced, ignore_errors=True)
            final.rename(replaced)
        staging.rename(final)
        sync_folder(self.folder)
        shutil.rmtree(self.folder / f".replaced_{final.name}", ignore_errors=True)
        self._point_latest_at(final)
        return final

    def discard(self, staging: Path) -> None:
        shutil.rmtree(staging, ignore_errors=True)

    def retain(self, in_use: Collection[Path] = ()) -> list[Path]:
        """Remove what `retention` does not keep; the newest and those `in_use` always stay."""
        limit = self.retention.max_to_keep
        if limit is None:
            return []
        steps = self.steps()
        kept = {*sorted(steps, reverse=True)[: max(limit, 1)], self.best_step()}
        removed = [path for step, path in steps.items() if step not in kept and path not in in_use]
        for path in removed:
            hidden = self.folder / f".removed_{path.name}"
            shutil.rmtree(hidden, ignore_errors=True)
            path.rename(hidden)  # so that a kill in the middle leaves no half checkpoint under its name
            shutil.rmtree(hidden, ignore_errors=True)
        return removed

    def clean(self) -> None:
        """Remove what a killed run left half done; for the start of a run, when nobody else writes here."""
        if not self.folder.is_dir():
            return
        for path in list(self.folder.iterdir()):
            if path.name.startswith(".replaced_"):
                final = self.folder / path.name.removeprefix(".replaced_")
                if not final.exists():  # killed between the two renames
                    path.rename(final)
            if path.name.startswith(_HIDDEN) and path.exists():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name in (".latest", ".latest.new", f"{_LEFT_WAY}.new"):
                path.unlink()

    def set_aside(self, folder: Path, after: int = -1) -> list[Path]:
        """Move the checkpoints of later steps into another folder: the run goes another way from here."""
        moved = [path for step, path in self.steps().items() if step > after]
        for path in moved:
            folder.mkdir(parents=True, exist_ok=True)
            path.rename(folder / path.name)
        if moved:
            (self.folder / "latest").unlink(missing_ok=True)
        return moved

    def leave_way(self, after: int) -> None:
        """Note that the run goes another way after this step (-1: it starts anew): later remote ones are not its own.

        The note stays until they are set aside, which the first upload does.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._replace(_LEFT_WAY, str(after))
        except OSError as error:
            raise CheckpointError(f"cannot write to {self.folder}: {error}; make room or set another folder") from error

    def left_way(self) -> int | None:
        """The last step that the run shares with what is in the remote store; None: all of it is its own."""
        try:
            return int((self.folder / _LEFT_WAY).read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            return -1  # the safe side: nothing is lost, it is only not fetched

    def forget_left_way(self) -> None:
        (self.folder / _LEFT_WAY).unlink(missing_ok=True)

    def _point_latest_at(self, path: Path) -> None:
        self._replace("latest", path.name)

    def _replace(self, name: str, text: str) -> None:
        """Write a small file that is either the old one or the new one."""
        written = self.folder / f".{name.lstrip('.')}.new"
        written.write_text(text)
        os.replace(written, self.folder / name)

    # ---- reading

    def steps(self) -> dict[int, Path]:
        """The checkpoints by step, complete or not."""
        if not self.folder.is_dir():
            return {}
        return {int(m.group(1)): path for path in self.folder.iterdir() if (m := _NAME.match(path.name))}

    def best_step(self) -> int | None:
        """The best of the steps here, by the retention's metric."""
        metrics: dict[int, Mapping[str, Any]] = {}
        for step, path in self.steps().items() if self.retention.best_metric else ():
            with contextlib.suppress(CheckpointError):
                metrics[step] = read_manifest(path).get("metrics", {})
        return self.retention.best(metrics)

    def newest(self, *, deep: bool = True) -> Found:
        """The newest complete checkpoint, and what is wrong with newer ones."""
        broken: dict[Path, str] = {}
        for _, path in sorted(self.steps().items(), reverse=True):
            fault = find_fault(path, deep=deep)
            if fault is None:
                return Found(path, broken)
            broken[path] = fault
        return Found(None, broken)

    def find(self, resume_mode: str) -> Found:
        """The checkpoint that `trainer.resume_mode` (auto, must, disable, or a path) asks for."""
        if resume_mode == "disable":
            return Found(None, {})
        if resume_mode not in ("auto", "must"):
            path = Path(resume_mode)
            if fault := find_fault(path):
                raise CheckpointError(
                    f"trainer.resume_mode={path} cannot be used: {fault}. Name a complete checkpoint, or use auto."
                )
            return Found(path, {})
        found = self.newest()
        if found.path is None and resume_mode == "must":
            reasons = "".join(f"\n- {path}: {fault}" for path, fault in found.broken.items())
            raise CheckpointError(
                f"trainer.resume_mode=must, but there is no checkpoint in {self.folder} that is complete{reasons}"
            )
        return found

    @staticmethod
    def read_state(path: Path) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads((path / "trainer.json").read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise CheckpointError(f"cannot read {path / 'trainer.json'}: {error}") from error
        return state


def find_checkpoint(place: Path, step: int | None = None) -> Path:
    """The complete checkpoint that a run folder, its `checkpoints/`, or the checkpoint's own folder means."""
    if _NAME.match(place.resolve().name) and step is None:
        if fault := find_fault(place):
            raise CheckpointError(f"{place} cannot be used: {fault}")
        return place
    folder = place / "checkpoints" if (place / "checkpoints").is_dir() else place
    store = CheckpointStore(folder)
    if step is None:
        found = store.newest()
        if found.path is None:
            reasons = "".join(f"\n- {path}: {fault}" for path, fault in found.broken.items())
            raise CheckpointError(f"there is no complete checkpoint in {folder}{reasons}")
        return found.path
    if step not in store.steps():
        have = ", ".join(str(known) for known in sorted(store.steps())) or "none"
        raise CheckpointError(f"{folder} has no checkpoint of step {step}; it has {have}")
    return find_checkpoint(store.steps()[step])
