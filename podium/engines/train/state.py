"""An engine's state on disk, by torch.distributed.checkpoint: sharded, and readable by any number of ranks.

All of it is named tensors: `model.<name>`, `optimizer.<name>.<key>` and `step_count` (the learning rate follows from
it). Whether a folder is complete, kept or published is the checkpoint store's matter.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from podium.engines.train.safe_metadata import SafeReader
from podium.errors import CheckpointError

MODEL, OPTIMIZER, STEP_COUNT = "model.", "optimizer.", "step_count"


def save_state(
    folder: Path, tensors: dict[str, Tensor], distributed: bool, process_group: ProcessGroup | None = None
) -> None:
    """Write; collective when `distributed`. A thread beside the training brings a process group of its own."""
    try:
        with _one_process_is_meant():
            writer = _Writer(folder)
            dcp_save(dict(tensors), storage_writer=writer, no_dist=not distributed, process_group=process_group)
    except CheckpointException as failure:  # not an Exception: whoever handles a failed save would not see it
        rank, cause = _first_cause(failure)
        whose = f" of rank {rank}" if distributed else ""
        raise CheckpointError(f"{folder}{whose} could not be written: {type(cause).__name__}: {cause}") from cause


def load_state(folder: Path, tensors: dict[str, Tensor], distributed: bool) -> None:
    """Read into the given tensors, in place; collective when `distributed`."""
    try:
        with _one_process_is_meant():
            dcp_load(dict(tensors), storage_reader=SafeReader(folder), no_dist=not distributed)
    except (CheckpointException, RuntimeError, ValueError, OSError) as error:
        if missing := missing_files(folder):
            raise CheckpointError(
                f"The checkpoint {folder} lacks {len(missing)} of its files on this machine, the first is "
                f"{missing[0]!r}. It was copied in part, or written by nodes that do not share a disk."
            ) from error
        cause = _first_cause(error)[1] if isinstance(error, CheckpointException) else error
        raise CheckpointError(f"The checkpoint {folder} does not fit this model: {cause}") from error


def missing_files(folder: Path) -> list[str]:
    """The files that a finished checkpoint's `.metadata` names and that are not in its folder."""
    stored = SafeReader(folder).read_metadata().storage_data or {}
    names = sorted({str(info.relative_path) for info in stored.values()})
    return [name for name in names if not (folder / name).is_file()]


class _Writer(FileSystemWriter):
    """torch's writer, which fails with what the disk said.

    Of a write that fails torch shows what it found in its own bookkeeping afterwards ("unexpected pos"); the disk's
    answer is behind that, and would not travel to the other ranks.
    """

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().write_data(*args, **kwargs)
        except RuntimeError as error:
            raise _answer_of_disk(error) from None


def _answer_of_disk(error: BaseException) -> BaseException:
    """The error of the operating system that an error came from, or the error itself."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return error if cause is None else cause


def _first_cause(failure: CheckpointException) -> tuple[int, BaseException]:
    """The lowest rank that failed, and why."""
    rank = min(failure.failures)
    return rank, _answer_of_disk(failure.failures[rank][0])


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
