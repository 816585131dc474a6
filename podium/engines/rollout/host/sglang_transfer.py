"""In SGLang's scheduler processes: weights out of shared memory, through SGLang's hook for weight loaders.

SGLang calls `load_file` with the model and a list of named tensors. The one name there is a description in JSON of
where the bytes lie; its tensor means nothing. What was taken in is noted in a file that the engine's process reads.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from podium.engines.rollout.buckets import Bucket
from podium.engines.rollout.host.records import Received, WeightFile
from podium.engines.rollout.remote import digest
from podium.engines.rollout.weights import sample_values

LOADER = f"{__name__}.load_file"


def describe(file: WeightFile, version: int, notes: str) -> str:
    """What `load_file` must know; it adds to a file of its process in the folder `notes`."""
    return json.dumps(
        {"path": file.path, "num_bytes": file.num_bytes, "entries": file.entries, "version": version, "notes": notes}
    )


def load_file(model: Any, named: list[tuple[str, torch.Tensor]]) -> None:
    told = json.loads(named[0][0])
    data = torch.from_file(told["path"], shared=False, size=told["num_bytes"], dtype=torch.uint8)
    tensors = list(Bucket([tuple(entry) for entry in told["entries"]], data).tensors())
    model.load_weights(iter(tensors))
    note = Path(told["notes"]) / f"{os.getpid()}.json"
    received: Received = json.loads(note.read_text()) if note.exists() else {}
    received |= {name: digest(sample_values(tensor, told["version"])) for name, tensor in tensors}
    note.write_text(json.dumps(received))
