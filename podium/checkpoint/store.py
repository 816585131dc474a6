"""CheckpointStore: the `checkpoints/` folder of a run.

A checkpoint is written into a staging folder and renamed when it is whole, so that a folder named `global_step_N` is
always complete. `latest` names the newest. What is in it: `trainer.json` (the controller's state) and one folder per
part, written by the workers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from podium.errors import CheckpointError

_NAME = re.compile(r"global_step_(\d+)$")


class CheckpointStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, step: int, state: dict[str, Any], write_parts: Callable[[Path], None]) -> Path:
        """Stage, let `write_parts(folder)` fill it, publish, and point `latest` at it."""
        final = self.folder / f"global_step_{step}"
        staging = self.folder / f".staging_{final.name}"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        write_parts(staging)
        (staging / "trainer.json").write_text(json.dumps(state, indent=1))
        shutil.rmtree(final, ignore_errors=True)
        staging.rename(final)
        pointer = self.folder / ".latest"
        pointer.write_text(final.name)
        os.replace(pointer, self.folder / "latest")
        return final

    def newest(self) -> Path | None:
        """The checkpoint with the highest step, if there is one."""
        if not self.folder.is_dir():
            return None
        found = [(int(m.group(1)), path) for path in self.folder.iterdir() if (m := _NAME.match(path.name))]
        return max(found)[1] if found else None

    def find(self, resume_mode: str) -> Path | None:
        """The checkpoint that `trainer.resume_mode` (auto, must, disable, or a path) asks for."""
        if resume_mode == "disable":
            return None
        if resume_mode not in ("auto", "must"):
            path = Path(resume_mode)
            if not (path / "trainer.json").is_file():
                raise CheckpointError(f"trainer.resume_mode={path} is no checkpoint: it has no trainer.json")
            return path
        newest = self.newest()
        if newest is None and resume_mode == "must":
            raise CheckpointError(f"trainer.resume_mode=must, but there is no checkpoint in {self.folder}")
        return newest

    @staticmethod
    def read_state(path: Path) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads((path / "trainer.json").read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise CheckpointError(f"cannot read {path / 'trainer.json'}: {error}") from error
        return state
