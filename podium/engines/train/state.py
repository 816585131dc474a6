"""An engine's state on disk, by torch.distributed.checkpoint: sharded, and readable by any number of ranks.

All of it is named tensors: `model.<name>`, `optimizer.<name>.<key>` and `step_count` (the learning rate follows from
it). Whether a folder is complete, kept or published is the checkpoint store's matter.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from podium.engines.train.safe_metadata import SafeReader
from podium.errors import CheckpointError

MODEL, OPTIMIZER, STEP_COUNT = "model.", "optimizer.", "step_count"


def save_state(
    folder: Path, tensors: dict[str, Tensor], distributed: bool, process_group: ProcessGroup | None = None
) -> None:
    """Write; collective when `distributed`. A thread beside the training brings a process group of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    with _one_process_is_meant():
        dcp_save(dict(tensors), checkpoint_id=folder, no_dist=not distributed, process_group=process_group)


def load_state(folder: Path, tensors: dict[str, Tensor], distributed: bool) -> None:
    """Read into the given tensors, in place; collective when `distributed`."""
    try:
        with _one_process_is_meant():
            dcp_load(dict(tensors), storage_reader=SafeReader(folder), no_dist=not distributed)
    except (CheckpointException, RuntimeError, ValueError) as error:
        raise CheckpointError(f"The checkpoint {folder} does not fit this model: {error}") from error


@contextmanager
def _one_process_is_meant() -> Iterator[None]:
    """torch warns whenever a lone process saves or loads without a process group; here that is the normal case."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def saved_names(folder: Path) -> set[str]:
    """The tensors a checkpoint holds."""
    if not (folder / ".metadata").is_file():
        raise CheckpointError(
            f"{folder} holds no finished engine checkpoint (no .metadata). Choose another checkpoint."
        )
    return set(SafeReader(folder).read_metadata().state_dict_metadata)


def require_model_tensors(folder: Path, wanted: set[str], saved: set[str]) -> None:
    """Raise unless the model's tensors among the `wanted` and the `saved` are the same."""
    for names, verb in ((wanted - saved, "lacks"), (saved - wanted, "has besides")):
        if differing := sorted(name for name in names if name.startswith(MODEL)):
            raise CheckpointError(
                f"The checkpoint {folder} does not fit this model: it {verb} {len(differing)} tensors, the first is "
                f"{differing[0]!r}. It was written for another model, or with other LoRA settings."
            )


def optimizer_tensors(optimizer: torch.optim.Optimizer, named: dict[str, Tensor]) -> dict[str, Tensor]:
    """The optimizer's state as named tensors."""
    return {
        f"{OPTIMIZER}{name}.{key}": value
        for name, parameter in named.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def create_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Make the tensors that a load fills, by a step that moves nothing: zero gradients at rate zero."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
