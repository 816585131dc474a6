"""Whether the parts that the workers wrote are all in the folder that is to be sealed.

Each rank writes its own file, and rank 0 a `.metadata` that names them all. Where the nodes do not share a disk each
node keeps its own files, and a checkpoint of what is here would not load. It neither writes nor moves anything.
"""

from __future__ import annotations

from pathlib import Path

from podium.engines.train.state import missing_files
from podium.errors import CheckpointError


def find_missing(folder: Path, num_parts: int) -> str | None:
    """What the workers wrote and is not here, or None. `num_parts`: how many models the checkpoint holds."""
    parts = sorted(path.parent for path in folder.glob("*/.metadata"))
    if len(parts) < num_parts:
        return f"{len(parts)} of {num_parts} models are here"
    for part in parts:
        if missing := missing_files(part):
            return f"{part.name}/ lacks {missing[0]} and {len(missing) - 1} other files of its ranks"
    return None


def not_shared(folder: Path, missing: str) -> CheckpointError:
    """The error for a folder that not all nodes see."""
    return CheckpointError(
        f"not everything that the workers wrote arrived in {folder.parent}: {missing}. The run folder "
        "(trainer.default_local_dir) must be on a disk that all nodes see"
    )
