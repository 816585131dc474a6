"""DataProto: the batch that travels through the trainer.

Tensor columns in a TensorDict, Python objects in numpy object arrays, and a `meta_info` dict that belongs to the batch
as a whole. All columns have the same number of rows; zero rows are legal. In the hand, token columns are padded to the
batch's own width (prompts on the left, responses on the right); how a batch looks between processes is wire.py's
matter. It knows nothing of algorithms.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

if TYPE_CHECKING:
    from podium.wire import Wire

Rows = slice | Sequence[int] | np.ndarray[Any, Any] | Tensor


def compute_position_ids(attention_mask: Tensor) -> Tensor:
    """Positions that count real tokens only; padding on the left is 0, padding on the right repeats the last."""
    return (attention_mask.long().cumsum(-1) - 1).clamp_(min=0)


def object_array(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """A one-dimensional object array, also when the values are lists of equal length."""
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array


@dataclass
class DataProtoItem:
    """One row."""

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)


@dataclass
class DataProto:
    batch: TensorDict | None = None
    non_tensor_batch: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.check_consistency()

    # ---- construction

    @classmethod
    def from_single_dict(cls, data: dict[str, Any], meta_info: dict[str, Any] | None = None) -> DataProto:
        """Tensors become tensor columns, everything else (arrays, lists) object columns."""
        tensors = {key: value for key, value in data.items() if isinstance(value, Tensor)}
        objects = {key: value for key, value in data.items() if not isinstance(value, Tensor)}
        return cls.from_dict(tensors, objects, meta_info)

    @classmethod
    def from_dict(
        cls,
        tensors: dict[str, Tensor] | None = None,
        non_tensors: dict[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> DataProto:
        tensors = tensors or {}
        objects = {}
        for key, value in (non_tensors or {}).items():
            is_objects = isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 1
            objects[key] = value if is_objects else object_array(list(value))
        sizes = {key: value.shape[0] for key, value in tensors.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"columns differ in length: {sizes}")
        batch = TensorDict(dict(tensors), batch_size=[next(iter(sizes.values()))]) if tensors else None
        return cls(batch=batch, non_tensor_batch=objects, meta_info=dict(meta_info or {}))

    def check_consistency(self) -> None:
        """Every column has as many rows as the batch."""
        sizes = {key: len(value) for key, value in self.non_tensor_batch.items()}
        if self.batch is not None:
            if len(self.batch.batch_size) != 1:
                raise ValueError(f"batch must have one batch dimension, got {tuple(self.batch.batch_size)}")
            sizes["batch"] = int(self.batch.batch_size[0])
        if len(set(sizes.values())) > 1:
            raise ValueError(f"columns differ in length: {sizes}")

    # ---- looking

    def __len__(self) -> int:
        if self.batch is not None:
            return int(self.batch.batch_size[0])
        return len(next(iter(self.non_tensor_batch.values()))) if self.non_tensor_batch else 0

    def __getitem__(self, item: int | Rows) -> Any:
        if isinstance(item, int | np.integer):
            return DataProtoItem(
                batch=None if self.batch is None else self.batch[int(item)],
                non_tensor_batch={key: value[item] for key, value in self.non_tensor_batch.items()},
                meta_info=self.meta_info,
            )
        return self.slice(item.start, item.stop, item.step) if isinstance(item, slice) else self.select_idxs(item)

    def __contains__(self, key: str) -> bool:
        return key in self.non_tensor_batch or key in self.tensors()

    def tensors(self) -> dict[str, Tensor]:
        if self.batch is None:
            return {}
        return {key: value for key, value in self.batch.items() if isinstance(value, Tensor)}

    def put(self, **tensors: Tensor) -> DataProto:
        """Add or replace tensor columns."""
        self.batch = _tensordict(self.tensors() | tensors, len(next(iter(tensors.values()))))
        self.check_consistency()
        return self

    # ---- rows

    def select_idxs(self, idxs: Rows) -> DataProto:
        """The given rows (indices or a boolean mask), in that order."""
        index = idxs if isinstance(idxs, Tensor) else torch.as_tensor(np.asarray(idxs))
        index = index.nonzero(as_tuple=True)[0] if index.dtype == torch.bool else index.long()
        host = index.cpu().numpy()
        tensors = {key: value[index.to(value.device)] for key, value in self.tensors().items()}
        return DataProto(
            batch=None if self.batch is None else TensorDict(tensors, batch_size=[len(host)]),
            non_tensor_batch={key: value[host] for key, value in self.non_tensor_batch.items()},
            meta_info=self.meta_info,
        )

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> DataProto:
        rows = slice(start, end, step)
        return DataProto(
            batch=None if self.batch is None else self.batch[rows],
            non_tensor_batch={key: value[rows] for key, value in self.non_tensor_batch.items()},
            meta_info=self.meta_info,
        )

    def reorder(self, indices: Rows) -> None:
        """Permute the rows in place."""
        ordered = self.select_idxs(indices)
        self.batch, self.non_tensor_batch = ordered.batch, ordered.non_tensor_batch

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> DataProto:
        """Each row `repeat_times` times: a a b b when interleaved, else a b a b."""
        rows = torch.arange(len(self))
        return self.select_idxs(rows.repeat_interleave(repeat_times) if interleave else rows.repeat(repeat_times))

    def chunk(self, chunks: int) -> list[DataProto]:
        """Exactly `chunks` parts, sizes as even as they can be; parts may be empty."""
        edges = np.linspace(0, len(self), chunks + 1).round().astype(int)
        return [self.slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]

    def split(self, split_size: int) -> list[DataProto]:
        """Parts of `split_size` rows; the last may be smaller."""
        return [self.slice(start, start + split_size) for start in range(0, len(self), split_size)]

    def make_iterator(self, mini_batch_size: int, epochs: int, seed: int | None = None) -> Iterator[DataProto]:
        """Mini-batches over `epochs` passes, shuffled anew each pass when a seed is given."""
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        for _ in range(epochs):
            order = torch.arange(len(self)) if generator is None else torch.randperm(len(self), generator=generator)
            for rows in order.split(mini_batch_size) if len(self) else ():
                yield self.select_idxs(rows)

    @staticmethod
    def concat(data: Sequence[DataProto]) -> DataProto:
        """All rows in order. Token columns of different widths are padded to the widest."""
        from podium.wire import widen

        if not data:
            raise ValueError("nothing to concatenate")
        filled = [part for part in data if len(part)] or list(data[:1])
        keys = set(filled[0].tensors()) | set(filled[0].non_tensor_batch)
        for part in filled[1:]:
            differing = keys ^ (set(part.tensors()) | set(part.non_tensor_batch))
            if differing:
                raise ValueError(f"parts differ in their columns: {sorted(differing)}")
        meta_info: dict[str, Any] = {}
        for part in reversed(data):
            meta_info |= part.meta_info
        wide = widen([part.tensors() for part in filled])
        tensors = {key: torch.cat([part[key] for part in wide]) for key in wide[0]}
        objects = {
            key: np.concatenate([part.non_tensor_batch[key] for part in filled]) for key in filled[0].non_tensor_batch
        }
        return DataProto.from_dict(tensors, objects, meta_info)

    # ---- columns

    def select(
        self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
        deepcopy: bool = False,
    ) -> DataProto:
        """Only the named columns; None keeps all of a kind."""
        tensors, objects, meta = self.tensors(), self.non_tensor_batch, self.meta_info
        object_keys = objects if non_tensor_batch_keys is None else non_tensor_batch_keys
        picked = DataProto(
            batch=_tensordict({k: tensors[k] for k in (tensors if batch_keys is None else batch_keys)}, len(self)),
            non_tensor_batch={k: objects[k] for k in object_keys},
            meta_info={k: meta[k] for k in (meta if meta_info_keys is None else meta_info_keys)},
        )
        return copy.deepcopy(picked) if deepcopy else picked

    def pop(
        self,
        batch_keys: Sequence[str] = (),
        non_tensor_batch_keys: Sequence[str] = (),
        meta_info_keys: Sequence[str] = (),
    ) -> DataProto:
        """Take the named columns out into a DataProto of their own."""
        taken = self.select(batch_keys, non_tensor_batch_keys, meta_info_keys)
        rest = {key: value for key, value in self.tensors().items() if key not in batch_keys}
        self.batch = _tensordict(rest, len(self))
        for key in non_tensor_batch_keys:
            del self.non_tensor_batch[key]
        for key in meta_info_keys:
            del self.meta_info[key]
        return taken

    def rename(self, old_keys: str | Sequence[str], new_keys: str | Sequence[str]) -> DataProto:
        old = [old_keys] if isinstance(old_keys, str) else list(old_keys)
        new = [new_keys] if isinstance(new_keys, str) else list(new_keys)
        if len(old) != len(new):
            raise ValueError(f"{len(old)} old names but {len(new)} new ones")
        names = dict(zip(old, new, strict=True))
        missing = [key for key in old if key not in self]
        if missing:
            raise KeyError(f"no such column: {missing}")
        self.batch = _tensordict({names.get(k, k): v for k, v in self.tensors().items()}, len(self))
        self.non_tensor_batch = {names.get(k, k): v for k, v in self.non_tensor_batch.items()}
        return self

    def union(self, other: DataProto) -> DataProto:
        """Add the other's columns and meta_info. A column both have must be equal."""
        if len(self) != len(other) and len(self.tensors()) + len(self.non_tensor_batch) > 0:
            raise ValueError(f"cannot unite {len(self)} rows with {len(other)}")
        for key, value in other.tensors().items():
            mine = self.tensors().get(key)
            if mine is not None and mine is not value and not torch.equal(mine, value):
                raise ValueError(f"column {key!r} differs between the two batches")
        for key, objects in other.non_tensor_batch.items():
            have = self.non_tensor_batch.get(key)
            if have is not None and not all(a is b or bool(np.all(a == b)) for a, b in zip(have, objects, strict=True)):
                raise ValueError(f"column {key!r} differs between the two batches")
        self.batch = _tensordict(self.tensors() | other.tensors(), len(other))
        self.non_tensor_batch |= other.non_tensor_batch
        self.meta_info |= other.meta_info
        return self

    def to(self, device: str | torch.device) -> DataProto:
        if self.batch is not None:
            self.batch = self.batch.to(device)
        return self

    # ---- between processes

    def to_wire(self) -> Wire:
        """The padding-free numpy form (wire.py)."""
        from podium.wire import pack

        return pack(self)

    @staticmethod
    def from_wire(wire: Wire) -> DataProto:
        from podium.wire import unpack

        return unpack(wire)


def _tensordict(tensors: dict[str, Tensor], rows: int) -> TensorDict | None:
    return TensorDict(tensors, batch_size=[rows]) if tensors else None


def pad_dataproto_to_divisor(data: DataProto, size_divisor: int) -> tuple[DataProto, int]:
    """Repeat rows from the start until the length divides; returns the padded batch and how many rows were added."""
    if len(data) == 0 or len(data) % size_divisor == 0:
        return data, 0
    pad_size = size_divisor - len(data) % size_divisor
    return data.select_idxs(np.arange(len(data) + pad_size) % len(data)), pad_size


def unpad_dataproto(data: DataProto, pad_size: int) -> DataProto:
    """Undo `pad_dataproto_to_divisor`."""
    return data if pad_size == 0 else data.slice(0, len(data) - pad_size)
