"""Tensor parallelism with Megatron: the numbers of one rank of TorchEngine, and its checkpoints."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_jobs import (
    FORMS,
    critic,
    from_files,
    half,
    load,
    refused,
    save,
    skip,
    tokens_between_layers,
    train_form,
    without_rows,
)
from rank_jobs import many, run_ranks
from sharing_jobs import infinite, not_a_number
from torch import Tensor
from train_cases import make_plain

from podium.metric import merge_metrics

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs podium[megatron]"),
    pytest.mark.timeout(300),
]

HEADS = (
    "qwen3: norms of queries and keys, plain descent",
    "four key-value heads",
    "every replica all of the optimizer's state",
)
"""Forms that four ranks can share."""
SPLITS = {2: [3, 5], 3: [6, 0, 2], 4: [2, 0, 5, 1]}


def apart(ours: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The largest difference of any weight."""
    assert ours.keys() == wanted.keys()
    return max(float((ours[name] - wanted[name]).abs().max()) for name in wanted)


def assert_close(results: list[Any], wanted: Tensor, atol: float = 1e-5) -> None:
    """The rows of all ranks, one below the other."""
    torch.testing.assert_close(torch.cat(results), wanted, atol=atol, rtol=0)


def assert_same_training(ours: list[Any], wanted: dict[str, Any], form: str) -> None:
    for rank in ours:
        assert apart(rank["weights"], wanted["weights"]) < 1e-5, form
        assert rank["norms"] == pytest.approx(wanted["norms"], rel=1e-5)
        assert rank["lr"] == wanted["lr"]
        assert rank["training"] is False
    for when in ("before", "scores"):
        for key, scores in wanted[when].items():
            assert_close([rank[when][key] for rank in ours], scores)
    assert_close([rank["mean_hidden"] for rank in ours], wanted["mean_hidden"])
    merged = merge_metrics({"loss": rank["loss"]} for rank in ours if rank["loss"] is not None)
    assert merged["loss"].result() == pytest.approx(wanted["loss"].result(), abs=1e-5)


def test_two_ranks_that_share_a_model_train_as_one(tmp_path: Path) -> None:
    """Uneven rows and micro-batches, a vocabulary that two does not divide; the norm is above what is clipped to."""
    names = [name for name in FORMS if name not in HEADS]
    results: Any = run_ranks(many, 2, tmp_path, [(train_form, ([3, 5], 2, name)) for name in names])
    for number, name in enumerate(names):
        wanted: Any = train_form([8], 0, name)
        assert min(wanted["norms"]) > 1.2, "clipping is active"
        ours = [rank[number] for rank in results]
        assert_same_training(ours, wanted, name)
        assert all(rank["held"] < 0.52 * wanted["held"] for rank in ours), "half of it each, and the norms"


@pytest.mark.parametrize("size", [1, 2, 4])
def test_replicas_of_shared_models_train_as_one(size: int, tmp_path: Path) -> None:
    """Four ranks, one of them without rows: four replicas, two of two ranks, one of four."""
    cases = [(train_form, (SPLITS[4], size, name)) for name in HEADS]
    results: Any = run_ranks(many, 4, tmp_path, cases)
    for number, name in enumerate(HEADS):
        ours, wanted = [rank[number] for rank in results], train_form([8], 0, name)
        assert_same_training(ours, wanted, f"{name}, size {size}")
        if name != HEADS[0]:
            replicas = 1 if name == HEADS[2] else 4 // size
            assert all(rank["moments"] < 1.1 * rank["held"] / replicas for rank in ours), "each keeps its share"
            assert sum(rank["moments"] for rank in ours) == sum(rank["held"] for rank in ours) / replicas


def test_with_sequence_parallelism_a_rank_has_its_stretch_of_the_tokens_between_layers(tmp_path: Path) -> None:
    cases = [(tokens_between_layers, ([1, 0], 2, in_stretches)) for in_stretches in (True, False)]
    for stretch, everything in run_ranks(many, 2, tmp_path, cases):  # type: ignore[misc]
        assert everything[0] == everything[1], "the last token predicts nothing and stays out"
        assert stretch[0] == -(-stretch[1] // 2)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_value_model_is_split_too(num_ranks: int, tmp_path: Path) -> None:
    values, weights = critic([8], 0)
    results: Any = run_ranks(critic, num_ranks, tmp_path, SPLITS[num_ranks], 2)
    assert all(apart(rank[1], weights) < 1e-5 for rank in results)
    assert_close([rank[0] for rank in results], values, atol=1e-4)


def test_half_precision_has_float32_masters(tmp_path: Path) -> None:
    alone: Any = half([8], 0)
    results: Any = run_ranks(half, 2, tmp_path, SPLITS[2], 2)
    for rank in results:
        assert apart(rank["before"], alone["before"]) == 0, "not rounded at the start"
        assert all((rank["after"][name] - before).any() for name, before in rank["before"].items())
        assert apart(rank["after"], alone["after"]) < 2.5e-5
        assert all(torch.equal(rank["after"][name].bfloat16(), tensor) for name, tensor in rank["rounded"].items())
    assert_close([rank["log_probs"] for rank in results], alone["log_probs"], atol=0.15)


def test_a_model_that_only_scores_is_read_from_its_files(tmp_path: Path) -> None:
    """Tensor by tensor, each rank its part."""
    make_plain("llama").save_pretrained(tmp_path / "model")
    scores, weights = from_files([8], 0, tmp_path / "model")
    results: Any = run_ranks(from_files, 2, tmp_path / "ranks", SPLITS[2], 2, tmp_path / "model")
    assert_close([rank[0] for rank in results], scores)
    assert all(apart(rank[1], weights) == 0 for rank in results)


@pytest.mark.parametrize(("num_ranks", "size"), [(2, 2), (4, 2)])
def test_a_step_that_is_not_finite_is_skipped_by_all(num_ranks: int, size: int, tmp_path: Path) -> None:
    spoilers = [not_a_number, infinite, None]
    cases = [(skip, (SPLITS[num_ranks], size, spoil)) for spoil in spoilers]
    results: Any = run_ranks(many, num_ranks, tmp_path, cases)
    for number, spoil in enumerate(spoilers):
        wanted, _ = skip([8], 0, spoil)
        for weights, _ in (rank[number] for rank in results):
            assert apart(weights[0], weights[1]) == 0
            assert apart(weights[2], wanted[2]) < 1e-5, "and nothing of it is left in the next step"
        merged = merge_metrics(rank[number][1][1] for rank in results)
        assert merged["skipped_updates"].result() == (0 if spoil is None else 1)


def test_a_step_without_a_row_on_any_rank_moves_nothing(tmp_path: Path) -> None:
    one_rank = without_rows([8], 0)
    for weights in run_ranks(without_rows, 2, tmp_path, SPLITS[2], 2):
        assert apart(weights, one_rank) < 1e-5  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("saver", "ranks", "loaders"),
    [(2, 2, ((2, 4), (1, 3), (0, 3))), (0, 3, ((2, 2), (2, 4))), (2, 4, ((2, 2),))],
    ids=["two ranks of one model", "FSDP", "two replicas"],
)
def test_a_checkpoint_goes_on_with_any_engine_and_number_of_ranks(
    saver: int, ranks: int, loaders: tuple[tuple[int, int], ...], tmp_path: Path
) -> None:
    """Megatron and FSDP (0), on other numbers of ranks and on one; AdamW's moments included."""
    folder = tmp_path / "saved"
    wanted, *same = run_ranks(save, ranks, tmp_path / "save", SPLITS[ranks], saver, folder)
    assert all(apart(weights, wanted) == 0 for weights in same)  # type: ignore[arg-type]
    for size, number in loaders:
        place = tmp_path / f"load_{size}_{number}"
        for weights in run_ranks(load, number, place, SPLITS[number], size, folder, 2, size != 0):
            assert apart(weights, wanted) < 1e-5  # type: ignore[arg-type]
    assert apart(load([8], 0, folder), wanted) < 1e-5  # type: ignore[arg-type]


def test_a_checkpoint_from_before_the_first_step(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    wanted, _ = run_ranks(save, 2, tmp_path / "save", SPLITS[2], 2, folder, 0)
    cases = [(load, (SPLITS[2], 2, folder, 0, used)) for used in (False, True)]
    for rank in run_ranks(many, 2, tmp_path / "load", cases):
        assert all(apart(weights, wanted) < 1e-5 for weights in rank)  # type: ignore[arg-type,attr-defined]


def test_what_cannot_be_split_is_refused_with_the_reason(tmp_path: Path) -> None:
    cases = {
        ("gemma", 2, ()): "does not have the model family 'gemma'; it has llama, mistral, qwen2, qwen3",
        ("llama", 4, ()): "tensor_model_parallel_size is 4, but the model has 2 key-value heads",
        ("llama", 3, ()): "tensor_model_parallel_size is 3 with 4 ranks; it must divide their number",
        ("llama", 2, ("lora",)): "LoRA needs strategy=fsdp or deepspeed",
        ("llama", 2, ("biased",)): "'model.layers.0.self_attn.o_proj.bias' has no place in Megatron's GPTModel",
        ("llama", 2, ("muon",)): "optim.name=Muon does not work with strategy=megatron",
        ("llama", 2, ("ulysses",)): "ulysses_sequence_parallel_size needs strategy=fsdp",
    }
    for rank in run_ranks(many, 4, tmp_path, [(refused, case) for case in cases]):
        for message, says in zip(rank, cases.values(), strict=True):  # type: ignore[call-overload]
            assert says in message
