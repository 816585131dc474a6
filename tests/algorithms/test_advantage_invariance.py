"""What must not matter to any advantage: padding, the order of rows, where an environment put the score."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from algorithm_cases import Case, cases, make_case
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from podium.algorithms import AdvantageEstimator, get_adv_estimator_fn
from podium.config.schema import AlgorithmConfig

ESTIMATORS = [str(name) for name in AdvantageEstimator]
CONFIG = AlgorithmConfig(reward_weights={"accuracy": 1.0, "format": 0.3})


def advantages_of(name: str, case: Case, **more: Any) -> tuple[Tensor, Tensor]:
    columns = dict(case.columns)
    rewards = columns.pop("token_level_rewards")
    columns["reward_parts"] = {key: columns.pop(key) for key in ("accuracy", "format")}
    return get_adv_estimator_fn(name)(
        rewards, case.mask, index=case.uids, gamma=0.97, lam=0.9, config=CONFIG, **columns, **more
    )


@pytest.mark.parametrize("name", ESTIMATORS)
@given(case=cases(), extra=st.integers(1, 4))
@settings(max_examples=12, deadline=None)
def test_padding_changes_nothing(name: str, case: Case, extra: int) -> None:
    width = case.mask.shape[1]
    for plain, wide in zip(
        advantages_of(name, case), advantages_of(name, case.padded(extra, float("nan"))), strict=True
    ):
        torch.testing.assert_close(wide[:, :width], plain)
        assert wide[:, width:].abs().sum() == 0.0


@pytest.mark.parametrize("name", ESTIMATORS)
@given(case=cases(), data=st.data())
@settings(max_examples=12, deadline=None)
def test_the_order_of_rows_changes_nothing(name: str, case: Case, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(case))))
    for plain, moved in zip(advantages_of(name, case), advantages_of(name, case.rows(order)), strict=True):
        torch.testing.assert_close(moved, plain[torch.tensor(order)])


@pytest.mark.parametrize("name", ESTIMATORS)
@given(case=cases())
@settings(max_examples=6, deadline=None)
def test_advantages_are_finite_and_zero_outside_the_mask(name: str, case: Case) -> None:
    for result in advantages_of(name, case):
        assert result.shape == case.mask.shape
        assert bool(result.isfinite().all())
        assert result[~case.mask.bool()].abs().sum() == 0.0


def with_observations(case: Case, at: int, length: int) -> Case:
    """`length` observation tokens before column `at`, with junk in every column but the rewards."""

    def insert(x: Tensor, fill: float) -> Tensor:
        return torch.cat([x[:, :at], x.new_full((len(x), length), fill), x[:, at:]], 1)

    columns = {
        k: v if v.dim() == 1 else insert(v, 0.0 if k == "token_level_rewards" else 77.0)
        for k, v in case.columns.items()
    }
    return Case(insert(case.mask, 0.0), case.uids, columns)


@pytest.mark.parametrize("name", ESTIMATORS)
@given(seed=st.integers(0, 2**31), at=st.integers(0, 6), length=st.integers(1, 3))
@settings(max_examples=10, deadline=None)
def test_observation_tokens_are_skipped(name: str, seed: int, at: int, length: int) -> None:
    case = make_case(seed, num_rows=6, width=6, group_size=3)
    written = list(range(at)) + list(range(at + length, 6 + length))
    for plain, gapped in zip(
        advantages_of(name, case), advantages_of(name, with_observations(case, at, length)), strict=True
    ):
        torch.testing.assert_close(gapped[:, written], plain)


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "gdpo"])
@given(seed=st.integers(0, 2**31))
@settings(max_examples=10, deadline=None)
def test_a_score_on_a_terminal_observation_counts_like_one_on_the_last_token(name: str, seed: int) -> None:
    case = make_case(seed, num_rows=6, width=6, group_size=3, observations=False)
    rewards = torch.zeros_like(case.columns["token_level_rewards"])
    last = case.mask.sum(-1).long().clamp(min=1) - 1
    score = torch.randn(6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    score[-1] = 0.0  # the row without a model token
    ended = with_observations(case, at=6, length=2)
    on_token, on_observation = rewards.clone(), torch.zeros_like(ended.columns["token_level_rewards"])
    on_token[torch.arange(6), last] = score
    on_observation[:, -1] = score
    case.columns["token_level_rewards"] = on_token
    ended.columns["token_level_rewards"] = on_observation
    for plain, moved in zip(advantages_of(name, case), advantages_of(name, ended), strict=True):
        torch.testing.assert_close(moved[:, :6], plain)
    assert any(bool(x.abs().sum() > 0) for x in advantages_of(name, ended))
