from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.protocol import (
    DataProto,
    compute_position_ids,
    object_array,
    pad_dataproto_to_divisor,
    unpad_dataproto,
)


def rollout_batch(prompt_lengths: list[int], response_lengths: list[int], seed: int = 0, **meta: Any) -> DataProto:
    """A batch as the rollout makes it, padded to its own width with token 9."""
    generator = torch.Generator().manual_seed(seed)
    rows, width_p, width_r = len(prompt_lengths), max(prompt_lengths, default=0), max(response_lengths, default=0)
    mask = torch.zeros(rows, width_p + width_r, dtype=torch.long)
    ids = torch.full_like(mask, 9)
    for i, (p, r) in enumerate(zip(prompt_lengths, response_lengths, strict=True)):
        mask[i, width_p - p : width_p + r] = 1
        ids[i, width_p - p : width_p + r] = torch.randint(10, 99, (p + r,), generator=generator)
    response_mask = mask[:, width_p:]
    return DataProto.from_dict(
        {
            "prompts": ids[:, :width_p],
            "responses": ids[:, width_p:],
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": compute_position_ids(mask),
            "response_mask": response_mask,
            "old_log_probs": torch.randn(response_mask.shape, generator=generator) * response_mask,
            "mini_batch": torch.arange(rows),
        },
        {"uid": [f"u{i}" for i in range(rows)], "extra": [{"i": i} for i in range(rows)]},
        meta,
    )


def assert_equal(a: DataProto, b: DataProto) -> None:
    assert list(a.tensors()) == list(b.tensors())
    for key, value in a.tensors().items():
        assert value.dtype == b.tensors()[key].dtype, key
        assert torch.equal(value, b.tensors()[key]), key
    assert list(a.non_tensor_batch) == list(b.non_tensor_batch)
    for key, objects in a.non_tensor_batch.items():
        assert list(objects) == list(b.non_tensor_batch[key])
    assert a.meta_info == b.meta_info


lengths = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=0, max_size=8)


@given(lengths, st.integers(0, 10))
@settings(max_examples=60, deadline=None)
def test_the_wire_form_gives_back_the_same_batch(rows: list[tuple[int, int]], seed: int) -> None:
    batch = rollout_batch([p for p, _ in rows], [r for _, r in rows], seed, temperature=0.7)
    wire = pickle.loads(pickle.dumps(batch.to_wire(), protocol=5))
    assert_equal(DataProto.from_wire(wire), batch)


def test_the_wire_form_carries_no_padding_and_a_groups_prompt_once() -> None:
    batch = rollout_batch([40], [1]).repeat(8)
    long = rollout_batch([40], [500], seed=1)
    wire = DataProto.concat([batch, long]).to_wire()
    assert wire.prompts is not None and len(wire.prompts.flat) == 80, "eight samples of a prompt carry it once"
    assert len(wire.responses["old_log_probs"].flat) == 8 + 500
    assert set(wire.derived) == {"input_ids", "attention_mask", "position_ids"}


def test_a_column_whose_padding_is_not_constant_travels_as_it_is() -> None:
    batch = rollout_batch([2, 3], [1, 4])
    assert batch.batch is not None
    batch.batch["values"] = torch.randn(2, 4)
    batch.batch["holes"] = torch.tensor([[1.0, 2.0, float("nan"), 0.0]] * 2)
    back = DataProto.from_wire(batch.to_wire())
    assert torch.equal(back.tensors()["values"], batch.batch["values"])
    assert torch.equal(back.tensors()["holes"].nan_to_num(7), batch.batch["holes"].nan_to_num(7))


def test_the_wire_form_keeps_bfloat16_and_large_integers() -> None:
    batch = DataProto.from_dict({"h": torch.randn(3, 4).bfloat16(), "seed": torch.tensor([2**60, -5, 7])})
    assert_equal(DataProto.from_wire(batch.to_wire()), batch)


def test_a_batch_without_tensors_and_an_empty_batch_survive_the_wire() -> None:
    assert_equal(
        DataProto.from_wire(DataProto.from_dict({}, {"uid": ["a"]}).to_wire()), DataProto.from_dict({}, {"uid": ["a"]})
    )
    assert len(DataProto.from_wire(DataProto().to_wire())) == 0


def test_concat_pads_prompts_left_and_responses_right() -> None:
    a, b = rollout_batch([2, 3], [1, 4], seed=1), rollout_batch([5], [2], seed=2)
    both = DataProto.concat([a, b])
    assert both.tensors()["prompts"].shape == (3, 5) and both.tensors()["responses"].shape == (3, 4)
    assert torch.equal(both.tensors()["prompts"][0, -2:], a.tensors()["prompts"][0, -2:])
    assert torch.equal(both.tensors()["responses"][2, :2], b.tensors()["responses"][0, :2])
    assert both.tensors()["responses"][2, 2:].tolist() == [9, 9]
    assert torch.equal(both.tensors()["position_ids"], compute_position_ids(both.tensors()["attention_mask"]))
    assert torch.equal(
        both.tensors()["input_ids"], torch.cat([both.tensors()["prompts"], both.tensors()["responses"]], 1)
    )


@given(lengths, st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_chunk_and_concat_are_inverse(rows: list[tuple[int, int]], parts: int) -> None:
    batch = rollout_batch([p for p, _ in rows], [r for _, r in rows])
    pieces = batch.chunk(parts)
    assert len(pieces) == parts
    sizes = [len(piece) for piece in pieces]
    assert max(sizes) - min(sizes) <= 1
    assert_equal(DataProto.concat(pieces), batch)


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        DataProto.from_dict({"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(ValueError, match="differ in length"):
        DataProto.from_dict({"a": torch.zeros(2)}, {"u": ["x"]})


def test_repeat_interleaves_or_tiles() -> None:
    batch = DataProto.from_dict({"a": torch.tensor([1, 2])}, {"u": ["x", "y"]})
    assert batch.repeat(2).tensors()["a"].tolist() == [1, 1, 2, 2]
    assert list(batch.repeat(2, interleave=False).non_tensor_batch["u"]) == ["x", "y", "x", "y"]


def test_select_pop_rename_and_union_move_columns() -> None:
    batch = DataProto.from_dict({"a": torch.zeros(2), "b": torch.ones(2)}, {"u": ["x", "y"]}, {"t": 1})
    assert list(batch.select(["a"], []).tensors()) == ["a"]
    taken = batch.pop(["b"], ["u"])
    assert "b" not in batch and "u" not in batch and "b" in taken
    taken.rename("b", "c")
    batch.union(taken)
    assert torch.equal(batch.tensors()["c"], torch.ones(2)) and list(batch.non_tensor_batch["u"]) == ["x", "y"]
    with pytest.raises(ValueError, match="'a' differs"):
        batch.union(DataProto.from_dict({"a": torch.ones(2)}))
    with pytest.raises(KeyError, match="nope"):
        batch.rename("nope", "x")


def test_rows_are_taken_by_index_mask_slice_and_number() -> None:
    batch = DataProto.from_dict({"a": torch.arange(4)}, {"u": list("wxyz")})
    assert batch[[3, 0]].tensors()["a"].tolist() == [3, 0]
    assert list(batch[torch.tensor([True, False, False, True])].non_tensor_batch["u"]) == ["w", "z"]
    assert batch[1:3].tensors()["a"].tolist() == [1, 2]
    assert batch[2].non_tensor_batch["u"] == "y"
    batch.reorder([3, 2, 1, 0])
    assert batch.tensors()["a"].tolist() == [3, 2, 1, 0]


def test_the_iterator_visits_each_row_once_per_epoch() -> None:
    batch = DataProto.from_dict({"a": torch.arange(5)})
    seen = torch.cat([part.tensors()["a"] for part in batch.make_iterator(2, epochs=2, seed=3)])
    assert sorted(seen[:5].tolist()) == sorted(seen[5:].tolist()) == [0, 1, 2, 3, 4]
    again = torch.cat([part.tensors()["a"] for part in batch.make_iterator(2, epochs=2, seed=3)])
    assert torch.equal(seen, again)


def test_padding_to_a_divisor_is_undone() -> None:
    batch = DataProto.from_dict({"a": torch.arange(5)})
    padded, added = pad_dataproto_to_divisor(batch, 4)
    assert len(padded) == 8 and added == 3
    assert torch.equal(unpad_dataproto(padded, added).tensors()["a"], torch.arange(5))


def test_object_columns_keep_lists_of_equal_length_as_objects() -> None:
    array = object_array([[1, 2], [3, 4]])
    assert array.shape == (2,) and array.dtype == np.dtype(object)
