"""Weights of a module that lives in this process: load a complete set, show it, sample it for a check.

Tied tensors appear under every name they have; a set is complete when each storage is written under at least one. It
does not decide when to publish nor what to compare with: that is engines/sync.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from podium.errors import PublishError
from podium.plugins import closest

SLICE_VALUES = 256
"""Values of a tensor that one check looks at; which ones changes with the version."""


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and saved buffers under all their names, sharing storage with the module."""
    yield from module.state_dict().items()


def load_tensors(module: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> int:
    """Copy a complete set of tensors into the module; the bytes copied. Anything amiss is a PublishError."""
    targets = dict(named_tensors(module))
    seen: set[str] = set()
    num_bytes = 0
    with torch.no_grad():
        for name, tensor in weights:
            if name not in targets:
                nearest = closest(name, targets)
                hint = f"; the nearest name it has is {nearest}" if nearest else ""
                raise PublishError(f"Tensor {name} was published, but the rollout engine's model has none{hint}.")
            if name in seen:
                raise PublishError(f"Tensor {name} was published twice in one set.")
            target = targets[name]
            if tensor.shape != target.shape:
                raise PublishError(
                    f"Tensor {name} was published with shape {list(tensor.shape)}; the rollout engine's model has "
                    f"{list(target.shape)}. Both must come from the same model folder."
                )
            target.copy_(tensor)
            seen.add(name)
            num_bytes += target.numel() * target.element_size()
    _refuse_missing(targets, seen)
    return num_bytes


def _refuse_missing(targets: dict[str, Tensor], seen: set[str]) -> None:
    written = {storage_of(targets[name]) for name in seen}
    missing = [name for name, tensor in targets.items() if storage_of(tensor) not in written and tensor.numel()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise PublishError(f"Tensor {missing[0]}{more} was not published: the rollout engine would keep its old value.")


def storage_of(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor lives; equal for two names of one tied tensor."""
    return tensor.data_ptr(), tensor.numel()


def sample_values(tensor: Tensor, version: int) -> Tensor:
    """At most SLICE_VALUES values, evenly spread, on the CPU; another offset for another version."""
    flat = tensor.detach().reshape(-1)
    stride = max(1, -(-flat.numel() // SLICE_VALUES))
    return flat[version * 7919 % stride :: stride].cpu()
