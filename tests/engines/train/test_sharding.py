"""Several ranks: the same numbers as one, whatever rows each has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rank_jobs import (
    SHARDED_FORMS,
    load_and_train,
    many,
    run_ranks,
    score,
    skip_one,
    train,
    train_and_save,
    train_in_half,
    train_streamed,
)
from torch import Tensor
from train_cases import make_plain

from podium.config.schema import FSDPConfig
from podium.engines.train.sharding import make_mesh
from podium.errors import ConfigError
from podium.metric import merge_metrics

SPLITS = {2: [3, 5], 3: [6, 0, 2]}


def assert_same(ours: dict[str, Tensor], wanted: dict[str, Tensor], atol: float = 1e-5) -> None:
    assert ours.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(ours[name], wanted[name], atol=atol, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_several_ranks_train_score_and_skip_as_one(num_ranks: int, tmp_path: Path) -> None:
    """Uneven rows, and with three ranks one that has none."""
    sizes = SPLITS[num_ranks]
    forms = list(SHARDED_FORMS.values())
    cases = [(train, (sizes, 1, dict(form))) for form in forms]
    more = [(train_in_half, (sizes,)), (score, (sizes,)), (skip_one, (sizes,))]
    results = run_ranks(many, num_ranks, tmp_path, [*cases, *more])

    wanted, alone = train([8], 1, {})
    for number, name in enumerate(SHARDED_FORMS):
        for weights, metrics in (rank[number] for rank in results):
            assert_same(weights, wanted)
            assert metrics["grad_norm"].result() == pytest.approx(alone["grad_norm"].result(), rel=1e-4), name
        merged = merge_metrics(rank[number][1] for rank in results)
        assert merged["loss"].result() == pytest.approx(alone["loss"].result(), abs=1e-5)
        assert merged["skipped_updates"].result() == 0

    for part, one in zip(zip(*(rank[-2] for rank in results), strict=True), score([8]), strict=True):
        torch.testing.assert_close(torch.cat(part), one, atol=1e-4, rtol=0)

    assert all(moved.any() for moves, _ in (rank[-3] for rank in results) for moved in moves.values())
    half = torch.cat([scores for _, scores in (rank[-3] for rank in results)])
    assert 0 < (half - score([8])[0]).abs().max() < 0.5

    for before, after, _ in (rank[-1] for rank in results):
        assert_same(after, before, atol=0)
    assert merge_metrics(rank[-1][2] for rank in results)["skipped_updates"].result() == 1


def test_replicas_of_shards_train_as_one(tmp_path: Path) -> None:
    """Four ranks, two copies of two shards each."""
    wanted, _ = train([8], 2, {})
    for weights, _ in run_ranks(train, 4, tmp_path, [3, 0, 1, 4], 2, {"fsdp": FSDPConfig(fsdp_size=2)}):
        assert_same(weights, wanted)


def test_a_checkpoint_of_two_ranks_goes_on_with_one_and_with_three(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    wanted, same = run_ranks(train_and_save, 2, tmp_path / "two", [4, 4], saved)
    assert_same(wanted, same, atol=0)
    assert_same(load_and_train([8], saved), wanted)
    for weights in run_ranks(load_and_train, 3, tmp_path / "three", [2, 5, 1], saved):
        assert_same(weights, wanted)


def test_an_fsdp_size_that_does_not_divide_the_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match="fsdp_size is 3 with 4 ranks"):
        make_mesh(torch.device("cpu"), 4, 3)
    with pytest.raises(ConfigError, match="fsdp_size is 8 with 4 ranks"):
        make_mesh(torch.device("cpu"), 4, 8)


def test_a_model_without_values_is_read_while_it_is_sharded(tmp_path: Path) -> None:
    make_plain("llama").save_pretrained(tmp_path / "model")
    cases = [(train_streamed, ([3, 5], tmp_path / "model", rank)) for rank in (0, 4)]
    results = run_ranks(many, 2, tmp_path / "ranks", cases)
    total = sum(parameter.numel() for parameter in make_plain("llama").parameters())
    for number, lora_rank in enumerate((0, 4)):
        wanted, _, _ = train_streamed([8], tmp_path / "model", lora_rank)
        for weights, read, kept in (rank[number] for rank in results):
            assert_same(weights, wanted)
            assert read == total and kept < 0.65 * total
