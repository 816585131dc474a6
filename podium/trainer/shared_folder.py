"""Whether the workers see the run folder: each rank writes its own files of a checkpoint there.

Asked once, before the training, so that nobody learns it from the first save. It changes nothing.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from podium.config.schema import TrainerConfig
from podium.single_controller.worker import Worker


def unseen_folder_notes(config: TrainerConfig, group: Any) -> list[str]:
    """What to say when some workers do not see the folder that checkpoints are to be saved in."""
    if config.runtime != "ray" or config.save_freq == 0:
        return []
    folder = Path(config.default_local_dir)
    probe = folder / f"seen_by_all_{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        seen = group.execute_all(Worker.sees.__name__, str(probe))
    except OSError:  # a save will say what is wrong with the folder
        return []
    finally:
        probe.unlink(missing_ok=True)
    blind = [rank for rank, sees in enumerate(seen) if not sees]
    if not blind:
        return []
    return [
        f"warning: {len(blind)} of {len(seen)} workers (the first is rank {blind[0]}) do not see the run folder "
        f"{folder}: their node has another disk there. Checkpoints cannot be saved like this: set "
        "trainer.default_local_dir to a folder that all nodes see, or trainer.save_freq=0"
    ]
