"""TensorBoard: event files in `<run>/tensorboard`. A resumed run appends; steps it does again replace the old ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from podium.config.schema import Config
from podium.tracking.optional import require_package
from podium.tracking.runlog import Sample
from podium.tracking.trackers import register_tracker


class TensorBoardTracker:
    def __init__(self, config: Config) -> None:
        require_package("tensorboard", "tensorboard")
        self.folder = Path(config.trainer.default_local_dir) / "tensorboard"
        self._writer: Any = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        writer = self._open(step)
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        for place, sample in enumerate(samples):
            text = f"score {sample.score}\n\n    {sample.input}\n\n    {sample.output}"
            self._open(step).add_text(f"val/generations/{place}", text, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open(self, step: int) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            again = any(self.folder.glob("events.out.tfevents.*"))
            self._writer = SummaryWriter(str(self.folder), purge_step=step if again else None)
        return self._writer


register_tracker("tensorboard")(TensorBoardTracker)
