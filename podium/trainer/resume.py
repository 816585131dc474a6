"""ResumePoint: all that a run needs to go on from the end of a step, apart from what the workers hold.

The trainer marks one after every finished step, so that a step that is dropped halfway leaves nothing behind. Samples
that were generated ahead of their update belong to it: they were drawn from weights that a resumed run no longer has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from podium.errors import CheckpointError
from podium.protocol import DataProto
from podium.rewards.manager import OUTCOME
from podium.rewards.records import Outcome
from podium.single_controller import CompletedFuture
from podium.trainer.rollout_queue import PendingRollout


@dataclass(frozen=True)
class ResumePoint:
    step: int
    state: dict[str, Any]
    """What goes into trainer.json."""
    pending: tuple[PendingRollout, ...] = ()
    """Rollouts that no update has used."""

    def write(self, folder: Path) -> None:
        """The files of this process's part of a checkpoint."""
        for number, rollout in enumerate(self.pending):
            _write_batch(rollout.output.get(), folder / "rollouts" / f"{number}")
            if rollout.baseline is not None:
                _write_batch(rollout.baseline.get(), folder / "rollouts" / f"{number}_baseline")


def pending_state(pending: Sequence[PendingRollout]) -> list[dict[str, Any]]:
    """What is kept of each rollout in trainer.json; its samples are in files."""
    return [{"sampler": p.sampler_state, "version": p.version, "baseline": p.baseline is not None} for p in pending]


def read_pending(
    folder: Path, entries: Sequence[dict[str, Any]], draw_prompts: Callable[[dict[str, int]], DataProto]
) -> list[PendingRollout]:
    """The unused rollouts of a checkpoint. `draw_prompts` puts the sampler to a state and draws its next prompts."""
    found = []
    for number, entry in enumerate(entries):
        place = folder / "rollouts" / f"{number}"
        baseline = _read_batch(Path(f"{place}_baseline")) if entry["baseline"] else None
        found.append(
            PendingRollout(
                draw_prompts(entry["sampler"]),
                CompletedFuture(_read_batch(place)),
                None if baseline is None else CompletedFuture(baseline),
                entry["sampler"],
                entry["version"],
            )
        )
    return found


def _write_batch(batch: DataProto, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    tensors = {str(name): tensor.contiguous() for name, tensor in batch.tensors().items()}
    save_file(tensors, f"{place}.safetensors")
    columns = {name: list(column) for name, column in batch.non_tensor_batch.items()}
    if OUTCOME in columns:
        columns[OUTCOME] = [None if outcome is None else asdict(outcome) for outcome in columns[OUTCOME]]
    Path(f"{place}.json").write_text(json.dumps(columns, default=_plain), encoding="utf-8")


def _plain(value: Any) -> Any:
    """A number of numpy or torch as a number, anything else as text."""
    return value.item() if hasattr(value, "item") else str(value)


def _read_batch(place: Path) -> DataProto:
    try:
        columns = json.loads(Path(f"{place}.json").read_text(encoding="utf-8"))
        if OUTCOME in columns:
            columns[OUTCOME] = [None if outcome is None else Outcome(**outcome) for outcome in columns[OUTCOME]]
        return DataProto.from_dict(load_file(f"{place}.safetensors"), columns)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the rollouts in {place.parent} cannot be read: {error}") from error
