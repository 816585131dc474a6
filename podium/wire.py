"""A batch between processes: no padding, plain numpy, each prompt once.

A padded batch of 1,024 sequences is some 60 MB of mostly padding; the same tokens packed are a tenth of that, and numpy
arrays pass through Ray's object store without a copy. `pack` never guesses: a column is packed only when its padding is
one constant (or follows from the masks), which it checks; any other column travels as it is.
`unpack(pack(x))` equals x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from podium.protocol import DataProto

Array = np.ndarray[Any, Any]


@dataclass
class Layout:
    """Where the real tokens of a [prompt | response] batch are."""

    prompt_width: int
    response_width: int
    prompt_lengths: Array  # [B] int32
    response_lengths: Array  # [B] int32

    def response_valid(self) -> Array:  # [B, R]
        return np.arange(self.response_width)[None] < self.response_lengths[:, None]

    def prompt_valid(self, lengths: Array | None = None) -> Array:  # [B, P]
        start = self.prompt_width - (self.prompt_lengths if lengths is None else lengths)
        return np.arange(self.prompt_width)[None] >= start[:, None]

    def attention_mask(self) -> Array:  # [B, P+R]
        return np.concatenate([self.prompt_valid(), self.response_valid()], axis=1)


@dataclass
class Packed:
    """The real tokens of a column, row after row."""

    flat: Array
    pad: Any
    dtype: torch.dtype


@dataclass
class Dense:
    """A column as it is."""

    array: Array
    dtype: torch.dtype


@dataclass
class Wire:
    num_rows: int
    has_tensors: bool
    layout: Layout | None = None
    responses: dict[str, Packed] = field(default_factory=dict)  # columns of the response's width
    prompts: Packed | None = None  # the tokens of the distinct prompts
    prompt_of_row: Array | None = None  # [B] which distinct prompt a row has
    distinct_lengths: Array | None = None
    derived: dict[str, torch.dtype] = field(default_factory=dict)  # full-width columns that follow from the others
    dense: dict[str, Dense] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    non_tensor_batch: dict[str, Array] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def num_bytes(self) -> int:
        """Bytes of the arrays; object columns are not counted."""
        arrays = [p.flat for p in self.responses.values()] + [d.array for d in self.dense.values()]
        extra = [self.prompt_of_row, self.distinct_lengths, self.prompts.flat if self.prompts else None]
        return sum(int(a.nbytes) for a in [*arrays, *extra] if a is not None)


def pack(data: DataProto) -> Wire:
    tensors = {key: value.detach().cpu() for key, value in data.tensors().items()}
    wire = Wire(len(data), bool(tensors), order=list(tensors), meta_info=data.meta_info)
    wire.non_tensor_batch = data.non_tensor_batch
    wire.layout = _layout(tensors)
    if wire.layout is not None:
        full = _full_width(tensors, wire.layout)
        wire.derived = {k: tensors[k].dtype for k, v in full.items() if _same(tensors, k, v)}
        valid = wire.layout.response_valid()
        for key, value in tensors.items():
            if key in wire.derived:
                continue
            if key == "prompts":
                _pack_prompts(wire, value)
            elif value.ndim == 2 and value.shape[1] == wire.layout.response_width:
                packed = _pack_responses(value, valid)
                if packed is not None:
                    wire.responses[key] = packed
    done = {*wire.derived, *wire.responses, *(["prompts"] if wire.prompts else [])}
    wire.dense = {key: Dense(_to_numpy(value), value.dtype) for key, value in tensors.items() if key not in done}
    return wire


def unpack(wire: Wire) -> DataProto:
    from podium.protocol import DataProto

    tensors = {key: _to_tensor(column.array.copy(), column.dtype) for key, column in wire.dense.items()}
    if wire.layout is not None:
        valid = wire.layout.response_valid()
        for key, packed in wire.responses.items():
            column = np.full(valid.shape, packed.pad, dtype=packed.flat.dtype)
            column[valid] = packed.flat
            tensors[key] = _to_tensor(column, packed.dtype)
        if wire.prompts is not None:
            assert wire.distinct_lengths is not None and wire.prompt_of_row is not None
            distinct = np.full((len(wire.distinct_lengths), wire.layout.prompt_width), wire.prompts.pad, np.int32)
            distinct[wire.layout.prompt_valid(wire.distinct_lengths)] = wire.prompts.flat
            tensors["prompts"] = _to_tensor(distinct[wire.prompt_of_row], wire.prompts.dtype)
        full = _full_width(tensors, wire.layout)
        tensors |= {key: full[key].to(dtype) for key, dtype in wire.derived.items()}
    objects = {key: value.copy() for key, value in wire.non_tensor_batch.items()}
    return DataProto.from_dict({key: tensors[key] for key in wire.order}, objects, dict(wire.meta_info))


def widen(parts: Sequence[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Pad the token columns of several batches to the widest prompt and response among them."""
    layouts = [layout for part in parts if (layout := _layout(part)) is not None]
    if len(layouts) < len(parts):
        uneven = [key for key in parts[0] if len({part[key].shape[1:] for part in parts}) > 1]
        if uneven:
            raise ValueError(
                f"columns {uneven} differ in width and there is no prompts/responses/attention_mask to align by"
            )
        return list(parts)
    widths = [(layout.prompt_width, layout.response_width) for layout in layouts]
    if len(set(widths)) == 1:
        return list(parts)
    prompt_width, response_width = max(p for p, _ in widths), max(r for _, r in widths)
    pad_token = _pad_token(parts)
    wide: list[dict[str, Tensor]] = [{} for _ in parts]
    for key in parts[0]:
        columns = [part[key] for part in parts]
        is_full = all(c.ndim == 2 and c.shape[1] == p + r for c, (p, r) in zip(columns, widths, strict=True))
        is_response = all(c.ndim == 2 and c.shape[1] == r for c, (_, r) in zip(columns, widths, strict=True))
        pad = pad_token if key in ("prompts", "responses", "input_ids") else 0
        for target, column, (p, r) in zip(wide, columns, widths, strict=True):
            left = prompt_width - p if key == "prompts" or is_full else 0
            right = response_width - r if (is_response or is_full) and key != "prompts" else 0
            target[key] = torch.nn.functional.pad(column, (left, right), value=pad) if left or right else column
    for target in wide:
        if "position_ids" in target:
            target["position_ids"] = _positions(target["attention_mask"]).to(target["position_ids"].dtype)
    return wide


# ---- helpers


def _layout(tensors: dict[str, Tensor]) -> Layout | None:
    """The batch's layout, if its masks are a left-padded prompt and a right-padded response."""
    if not {"prompts", "responses", "attention_mask"} <= set(tensors):
        return None
    prompt_width, response_width = tensors["prompts"].shape[1], tensors["responses"].shape[1]
    mask = tensors["attention_mask"].bool().cpu().numpy()
    if mask.shape[1] != prompt_width + response_width:
        return None
    prompt_lengths = mask[:, :prompt_width].sum(1).astype(np.int32)
    response_lengths = mask[:, prompt_width:].sum(1).astype(np.int32)
    layout = Layout(prompt_width, response_width, prompt_lengths, response_lengths)
    return layout if np.array_equal(layout.attention_mask(), mask) else None


def _positions(attention_mask: Tensor) -> Tensor:
    from podium.protocol import compute_position_ids

    return compute_position_ids(attention_mask)


def _full_width(tensors: dict[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """What the full-width columns must be if they follow from prompts, responses and lengths."""
    mask = torch.from_numpy(layout.attention_mask())
    full = {"attention_mask": mask, "position_ids": _positions(mask)}
    if "prompts" in tensors and "responses" in tensors:
        full["input_ids"] = torch.cat([tensors["prompts"], tensors["responses"]], dim=1)
    return full


def _same(tensors: dict[str, Tensor], key: str, value: Tensor) -> bool:
    return key in tensors and tensors[key].shape == value.shape and bool((tensors[key] == value).all())


def _pack_prompts(wire: Wire, prompts: Tensor) -> None:
    assert wire.layout is not None
    rows = prompts.numpy().astype(np.int32)
    valid = wire.layout.prompt_valid()
    pad = rows[~valid][0] if (~valid).any() else np.int32(0)
    if not np.array_equal(rows.astype(np.int64), prompts.numpy()) or not (rows[~valid] == pad).all():
        return
    seen: dict[bytes, int] = {}
    firsts: list[int] = []
    of_row = np.empty(len(rows), np.int32)
    for i, row in enumerate(rows):
        length = int(wire.layout.prompt_lengths[i])
        key = row[len(row) - length :].tobytes()
        if key not in seen:
            seen[key] = len(firsts)
            firsts.append(i)
        of_row[i] = seen[key]
    wire.prompts = Packed(rows[firsts][valid[firsts]], pad, prompts.dtype)
    wire.prompt_of_row, wire.distinct_lengths = of_row, wire.layout.prompt_lengths[firsts]


def _pack_responses(value: Tensor, valid: Array) -> Packed | None:
    array = _to_numpy(value)
    outside = array[~valid]
    pad = outside[0] if outside.size else array.dtype.type(0)
    return Packed(array[valid], pad, value.dtype) if bool((outside == pad).all()) else None


def _pad_token(parts: Sequence[dict[str, Tensor]]) -> int:
    """The token that pads these batches already; 0 when none has any padding."""
    for part in parts:
        padding = torch.cat([part["prompts"], part["responses"]], 1)[~part["attention_mask"].bool()]
        if padding.numel():
            return int(padding[0])
    return 0


def _to_numpy(value: Tensor) -> Array:
    """int64 becomes int32 where it fits; bfloat16, which numpy lacks, travels as its bits."""
    if value.dtype == torch.bfloat16:
        return value.contiguous().view(torch.int16).numpy()
    array: Array = value.numpy()
    if array.dtype == np.int64 and (array.size == 0 or (abs(array.min()) < 2**31 and abs(array.max()) < 2**31)):
        return array.astype(np.int32)
    return array


def _to_tensor(array: Array, dtype: torch.dtype) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == torch.bfloat16 else tensor.to(dtype)
