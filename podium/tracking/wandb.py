"""Weights & Biases. Without a login it writes offline, under `<run>/wandb`; `wandb sync` sends that later.

`WANDB_MODE` and the package's other variables work as always. A resumed run goes on under its old id.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from podium.config.schema import Config
from podium.tracking.optional import COLUMNS, public_config, require_package, table_rows
from podium.tracking.runlog import Sample
from podium.tracking.trackers import register_tracker


class WandbTracker:
    def __init__(self, config: Config) -> None:
        require_package("wandb", "wandb")
        self.config = config
        self.run_id = uuid.uuid4().hex[:12]
        self._run: Any = None
        self._rows: list[list[Any]] = []

    def resume(self, run_id: str) -> None:
        """Go on with an earlier run; before the first numbers."""
        self.run_id = run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._open().log(dict(metrics), step=step)

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        import wandb

        run = self._open()
        self._rows += table_rows(step, samples)
        run.log({"val/generations": wandb.Table(columns=list(COLUMNS), data=list(self._rows))}, step=step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()

    def _open(self) -> Any:
        if self._run is None:
            import wandb

            trainer = self.config.trainer
            folder = Path(trainer.default_local_dir)
            folder.mkdir(parents=True, exist_ok=True)
            self._run = wandb.init(
                project=trainer.project_name,
                name=trainer.experiment_name,
                id=self.run_id,
                resume="allow",
                dir=str(folder),
                mode=_mode(),
                config=public_config(self.config),
                settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
            )
        return self._run


def _mode() -> Any:
    """What the user set; else online with a login and offline without one, so that nothing waits for a key."""
    if mode := os.environ.get("WANDB_MODE"):
        return mode
    netrc = Path("~/.netrc").expanduser()
    known = os.environ.get("WANDB_API_KEY") or (netrc.is_file() and "wandb" in netrc.read_text(errors="replace"))
    return "online" if known else "offline"


register_tracker("wandb")(WandbTracker)
