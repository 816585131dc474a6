"""ZeRO-2 and ZeRO-3: the same numbers as one rank of TorchEngine, and its checkpoints."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed_jobs import (
    FORMS,
    critic,
    half,
    load,
    lora,
    refused,
    save,
    skip,
    train,
    train_form,
    without_rows,
)
from rank_jobs import many, run_ranks
from sharing_jobs import infinite, not_a_number
from torch import Tensor

from podium.config.schema import OptimConfig
from podium.engines.train.zero import check_optimizer
from podium.errors import ConfigError
from podium.metric import merge_metrics

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs podium[deepspeed]"),
    pytest.mark.timeout(1800),
]

SPLITS = {2: [3, 5], 3: [6, 0, 2]}


def apart(ours: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The largest difference of any weight."""
    assert ours.keys() == wanted.keys()
    return max(float((ours[name] - wanted[name]).abs().max()) for name in wanted)


def assert_close(results: list[Any], wanted: Tensor, atol: float = 1e-4) -> None:
    """The rows of all ranks, one below the other."""
    torch.testing.assert_close(torch.cat(results), wanted, atol=atol, rtol=0)


@pytest.mark.parametrize("stage", [2, 3])
def test_ranks_train_as_one_without_deepspeed(stage: int, tmp_path: Path) -> None:
    """Uneven rows and micro-batches; the norm is well above what is clipped to."""
    cases = [(train_form, ([3, 5], stage, name)) for name in FORMS]
    results: Any = run_ranks(many, 2, tmp_path, cases)
    for number, name in enumerate(FORMS):
        wanted, ours = train_form([8], 0, name), [rank[number] for rank in results]
        assert min(wanted["norms"]) > 1.2, "clipping is active"
        for rank in ours:
            assert apart(rank["weights"], wanted["weights"]) < 1e-5, name
            assert rank["norms"] == pytest.approx(wanted["norms"], rel=1e-4)
            assert rank["training"] is False, "a rollout engine may run this very module next"
        for key in ("log_probs", "entropys", "mean_hidden"):
            assert_close([rank[key] for rank in ours], wanted[key])
        merged = merge_metrics({"loss": rank["loss"]} for rank in ours)
        assert merged["loss"].result() == pytest.approx(wanted["loss"].result(), abs=1e-5)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_rank_without_rows_takes_part(stage: int, tmp_path: Path) -> None:
    wanted: Any = train([8], 0)
    values, weights = critic([8], 0)
    results: Any = run_ranks(many, 3, tmp_path, [(train, (SPLITS[3], stage)), (critic, (SPLITS[3], stage))])
    assert all(apart(rank[0]["weights"], wanted["weights"]) < 1e-5 for rank in results)
    assert all(apart(rank[1][1], weights) < 1e-5 for rank in results)
    assert_close([rank[1][0] for rank in results], values)


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("stage", [2, 3])
def test_half_precision_has_float32_masters(stage: int, offload: bool, tmp_path: Path) -> None:
    alone: Any = half([8], 0)
    results: Any = run_ranks(half, 2, tmp_path, SPLITS[2], stage, offload)
    for rank in results:
        assert apart(rank["before"], alone["before"]) == 0, "not rounded at the start"
        assert all((rank["after"][name] - before).any() for name, before in rank["before"].items())
        assert apart(rank["after"], alone["after"]) < 2.5e-5
        assert all(torch.equal(rank["after"][name].bfloat16(), tensor) for name, tensor in rank["rounded"].items())
    assert_close([rank["log_probs"] for rank in results], alone["log_probs"], atol=0.05)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_step_that_is_not_finite_is_skipped_by_all(stage: int, tmp_path: Path) -> None:
    spoilers = [not_a_number, infinite, None]
    results: Any = run_ranks(many, 2, tmp_path, [(skip, (SPLITS[2], stage, spoil)) for spoil in spoilers])
    for number, spoil in enumerate(spoilers):
        wanted, _ = skip([8], 0, spoil)
        for weights, _ in (rank[number] for rank in results):
            assert apart(weights[0], weights[1]) == 0
            assert apart(weights[2], wanted[2]) < 1e-5, "and nothing of it is left in the next step"
        merged = merge_metrics(rank[number][1][1] for rank in results)
        assert merged["skipped_updates"].result() == (0 if spoil is None else 1)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_step_without_a_row_on_any_rank_moves_nothing(stage: int, tmp_path: Path) -> None:
    one_rank = without_rows([8], 0)
    for weights in run_ranks(without_rows, 2, tmp_path, SPLITS[2], stage):
        assert apart(weights, one_rank) < 1e-5  # type: ignore[arg-type]


@pytest.mark.parametrize(("saver", "loaders"), [(2, (3, 0)), (3, (2,)), (0, (2, 3))])
def test_a_checkpoint_goes_on_with_any_engine_and_number_of_ranks(
    saver: int, loaders: tuple[int, ...], tmp_path: Path
) -> None:
    """ZeRO-2, ZeRO-3 and FSDP (0), from two ranks to three and to one; AdamW's moments included."""
    folder = tmp_path / "saved"
    wanted, same = run_ranks(save, 2, tmp_path / "save", SPLITS[2], saver, folder)
    assert apart(wanted, same) == 0  # type: ignore[arg-type]
    cases = [(load, (SPLITS[3], stage, folder, 2, stage != 0)) for stage in loaders]
    for rank in run_ranks(many, 3, tmp_path / "load", cases):
        assert all(apart(weights, wanted) < 1e-5 for weights in rank)  # type: ignore[arg-type,attr-defined]
    assert apart(load([8], 0, folder), wanted) < 1e-5  # type: ignore[arg-type]


def test_a_checkpoint_from_before_the_first_step(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    wanted, _ = run_ranks(save, 2, tmp_path / "save", SPLITS[2], 2, folder, 0)
    cases = [(load, (SPLITS[2], stage, folder, 0, used)) for stage in (2, 3) for used in (False, True)]
    for rank in run_ranks(many, 2, tmp_path / "load", cases):
        assert all(apart(weights, wanted) < 1e-5 for weights in rank)  # type: ignore[arg-type,attr-defined]


@pytest.mark.parametrize("stage", [2, 3])
def test_adapters_are_trained_beside_a_frozen_model(stage: int, tmp_path: Path) -> None:
    wanted: Any = lora([8], 0)
    results: Any = run_ranks(lora, 2, tmp_path, SPLITS[2], stage)
    for rank in results:
        assert apart(rank["weights"], wanted["weights"]) < 1e-5
        assert apart(rank["adapter"], wanted["adapter"]) < 1e-5
        assert rank["names"] == wanted["names"]
    assert_close([rank["reference"] for rank in results], wanted["reference"])


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_optimizers_that_look_at_shapes_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"optim.name={name} does not work with strategy=deepspeed"):
        check_optimizer(OptimConfig(name=name))


def test_a_setting_that_deepspeed_does_not_know_is_named(tmp_path: Path) -> None:
    for message in run_ranks(refused, 2, tmp_path, 3, {"reduce_bucket_sise": 5}):
        assert "zero_kwargs={'reduce_bucket_sise': 5}" in str(message)
