"""SwanLab. Without an API key it writes offline, under `<run>/swanlog`; `swanlab sync` sends that later.

`SWANLAB_MODE` works as always. A resumed run goes on under its old id; offline that is a further folder of the same id.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from podium.config.schema import Config
from podium.tracking.optional import public_config, require_package
from podium.tracking.runlog import Sample
from podium.tracking.trackers import register_tracker


class SwanLabTracker:
    def __init__(self, config: Config) -> None:
        require_package("swanlab", "swanlab")
        self.config = config
        self.run_id = uuid.uuid4().hex[:16]
        self._run: Any = None

    def resume(self, run_id: str) -> None:
        """Go on with an earlier run; before the first numbers."""
        self.run_id = run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._open().log(dict(metrics), step=step)

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        import swanlab

        texts = [swanlab.Text(f"{s.input}\n---\n{s.output}", caption=f"score {s.score}") for s in samples]
        self._open().log({"val/generations": texts}, step=step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()

    def _open(self) -> Any:
        if self._run is None:
            import swanlab

            trainer = self.config.trainer
            folder = Path(trainer.default_local_dir) / "swanlog"
            folder.mkdir(parents=True, exist_ok=True)
            mode: Any = os.environ.get("SWANLAB_MODE") or ("online" if os.environ.get("SWANLAB_API_KEY") else "offline")
            self._run = swanlab.init(
                project=trainer.project_name,
                name=trainer.experiment_name,
                id=self.run_id,
                resume="allow",
                log_dir=str(folder),
                mode=mode,
                config=public_config(self.config),
            )
        return self._run


register_tracker("swanlab")(SwanLabTracker)
