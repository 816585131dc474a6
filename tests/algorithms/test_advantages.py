from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from podium.algorithms import (
    compute_gae_advantage_return,
    compute_gdpo_outcome_advantage,
    compute_gpg_outcome_advantage,
    compute_grpo_outcome_advantage,
    compute_grpo_passk_outcome_advantage,
    compute_opo_outcome_advantage,
    compute_optimal_token_baseline_advantage,
    compute_reinforce_plus_plus_baseline_outcome_advantage,
    compute_reinforce_plus_plus_outcome_advantage,
    compute_remax_outcome_advantage,
    compute_rloo_outcome_advantage,
    compute_tir_optimal_token_baseline_advantage,
    degenerate_groups,
    reward_to_go,
    zero_std_groups,
)
from podium.errors import ConfigError

LENGTHS = [2, 4, 4, 2, 1, 3]
SCORES = [1.0, 0.0, 0.0, 1.0, 2.0, 0.5]
INDEX = np.array(["a", "a", "a", "a", "b", "b"], dtype=object)


def golden_batch() -> tuple[Tensor, Tensor]:
    mask = (torch.arange(4)[None] < torch.tensor(LENGTHS)[:, None]).float()
    rewards = torch.zeros(6, 4)
    rewards[torch.arange(6), torch.tensor(LENGTHS) - 1] = torch.tensor(SCORES)
    return rewards, mask


def assert_rows(advantages: Tensor, mask: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(advantages, torch.tensor(expected)[:, None] * mask, atol=2e-6, rtol=0)


OUTCOME = [
    (compute_grpo_outcome_advantage, {}, [0.866024, -0.866024, -0.866024, 0.866024, 0.707106, -0.707106]),
    (compute_grpo_outcome_advantage, {"norm_adv_by_std_in_grpo": False}, [0.5, -0.5, -0.5, 0.5, 0.75, -0.75]),
    (compute_rloo_outcome_advantage, {}, [0.666667, -0.666667, -0.666667, 0.666667, 1.5, -1.5]),
    (compute_opo_outcome_advantage, {}, [0.666667, -0.333333, -0.333333, 0.666667, 1.125, -0.375]),
    (compute_grpo_passk_outcome_advantage, {}, [0.0, 0.0, 0.0, 0.0, 1.414212, 0.0]),
    (compute_grpo_passk_outcome_advantage, {"norm_adv_by_std_in_grpo": False}, [0.0, 0.0, 0.0, 0.0, 1.5, 0.0]),
    (compute_gpg_outcome_advantage, {}, [0.75, -0.75, -0.75, 0.75, 1.125, -1.125]),
    (
        compute_reinforce_plus_plus_baseline_outcome_advantage,
        {},
        [1.314536, -0.514384, -0.514384, 1.314536, 1.771766, -0.971614],
    ),
]


@pytest.mark.parametrize(("function", "settings", "expected"), OUTCOME)
def test_golden_values_of_outcome_estimators(function, settings, expected) -> None:
    rewards, mask = golden_batch()
    advantages, returns = function(rewards, mask, INDEX, **settings)
    assert_rows(advantages, mask, expected)
    torch.testing.assert_close(returns, advantages)
    assert returns is not advantages


def test_golden_values_of_gae() -> None:
    rewards = torch.tensor([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.5, 0.0]])
    values = torch.tensor([[0.1, 0.9, 0.3, 0.4], [0.2, 0.1, 0.0, 0.7]])
    mask = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 0]])
    advantages, returns = compute_gae_advantage_return(rewards, values, mask, gamma=0.9, lam=0.8)
    raw = torch.tensor([[0.62424, 0.0, 0.792, 1.0], [0.2772, 0.36, 0.5, 0.0]])
    whitened = torch.tensor([[0.580712, 0.0, 0.418381, 0.962169], [-1.670167, -0.749756, 0.458661, 0.0]])
    torch.testing.assert_close(returns, raw, atol=1e-6, rtol=0)
    torch.testing.assert_close(advantages, whitened, atol=2e-6, rtol=0)


def test_golden_values_of_reinforce_plus_plus() -> None:
    rewards, mask = golden_batch()
    advantages, returns = compute_reinforce_plus_plus_outcome_advantage(rewards, mask, gamma=0.9)
    expected = {0: [0.781416, 0.953986], 1: [-0.771709] * 4, 4: [2.679681], 5: [-0.072803, 0.004854, 0.091138]}
    for row, numbers in expected.items():
        assert advantages[row, : len(numbers)].tolist() == pytest.approx(numbers, abs=2e-6)
    assert returns[5].tolist() == pytest.approx([0.405, 0.45, 0.5, 0.0])


def test_gae_at_lambda_one_and_zero_values_is_reward_to_go() -> None:
    rewards, mask = golden_batch()
    _, returns = compute_gae_advantage_return(rewards, torch.zeros_like(rewards), mask, gamma=0.9, lam=1.0)
    torch.testing.assert_close(returns, reward_to_go(rewards, mask, gamma=0.9))


def test_gae_of_a_perfect_critic_is_zero_everywhere() -> None:
    rewards, mask = golden_batch()
    values = reward_to_go(rewards, mask)
    advantages, returns = compute_gae_advantage_return(rewards, values, mask)
    torch.testing.assert_close(returns, values)
    torch.testing.assert_close(advantages, torch.zeros_like(rewards))


def test_remax_subtracts_the_greedy_score_from_the_reward_to_go() -> None:
    rewards, mask = golden_batch()
    advantages, returns = compute_remax_outcome_advantage(rewards, torch.full((6,), 0.25), mask)
    assert_rows(advantages, mask, [score - 0.25 for score in SCORES])
    assert_rows(returns, mask, SCORES)


@pytest.mark.parametrize(
    "function",
    [
        compute_grpo_outcome_advantage,
        compute_grpo_passk_outcome_advantage,
        compute_rloo_outcome_advantage,
        compute_opo_outcome_advantage,
        compute_gpg_outcome_advantage,
        compute_reinforce_plus_plus_baseline_outcome_advantage,
    ],
)
@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_a_degenerate_group_and_a_group_of_one_get_exactly_zero(function, noise: float) -> None:
    scores = torch.tensor([0.1, 0.1 + noise, 0.1 - noise, 5.0])
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]])
    rewards = torch.stack([scores, torch.zeros(4)], -1)
    advantages, _ = function(rewards, mask, np.array(["a", "a", "a", "lone"], dtype=object))
    assert advantages.abs().max() == 0.0


def test_degenerate_groups_are_found_by_row_and_counted() -> None:
    returns = torch.tensor([1.0, 0.0, 1e6, 1e6 + 0.5, 3.0])
    index = torch.tensor([7, 7, 2, 2, 9])
    assert degenerate_groups(returns, index).tolist() == [False, False, True, True, True]
    assert zero_std_groups(returns, index) == 2


def test_groups_are_the_same_from_uids_numbers_and_lists() -> None:
    rewards, mask = golden_batch()
    numbers = [3, 3, 3, 3, 1, 1]
    expected, _ = compute_grpo_outcome_advantage(rewards, mask, INDEX)
    for index in (torch.tensor(numbers), np.array(numbers), np.array(numbers, dtype=object), numbers):
        torch.testing.assert_close(compute_grpo_outcome_advantage(rewards, mask, index)[0], expected)


def token_baseline_batch() -> dict[str, Tensor]:
    probabilities = torch.tensor([[0.5, 0.25, 0.8], [0.9, 0.4, 0.6]])
    return {
        "old_log_probs": probabilities.log(),
        "sum_pi_squared": torch.tensor([[0.5, 0.3, 0.7], [0.85, 0.5, 0.4]]),
    }


def test_the_token_baseline_weighs_by_gradient_energy_so_far() -> None:
    columns = token_baseline_batch()
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 3.0, 0.0]])
    advantages, returns = compute_optimal_token_baseline_advantage(rewards, mask, torch.tensor([0, 0]), **columns)
    w = [[1 - 1 + 0.5, 1 - 0.5 + 0.3, 1 - 1.6 + 0.7], [1 - 1.8 + 0.85, 1 - 0.8 + 0.5]]
    big = [[w[0][0], w[0][0] + w[0][1]], [w[1][0], w[1][0] + w[1][1]]]
    for t in (0, 1):
        baseline = (1.0 * big[0][t] + 3.0 * big[1][t]) / (big[0][t] + big[1][t] + 1e-8)
        assert advantages[:, t].tolist() == pytest.approx([1 - baseline, 3 - baseline], abs=1e-6)
    assert advantages[:, 2].tolist() == pytest.approx([0.0, 0.0], abs=1e-6)  # alone at its position
    torch.testing.assert_close(returns, torch.tensor([[1.0, 1.0, 1.0], [3.0, 3.0, 0.0]]))


def test_the_tool_use_token_baseline_aligns_model_tokens_across_observations() -> None:
    columns = token_baseline_batch()
    plain_mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 3.0, 0.0]])
    gapped = {k: torch.stack([v[0], torch.stack([v[1, 0], torch.tensor(9.0), v[1, 1]])]) for k, v in columns.items()}
    gapped_mask = torch.tensor([[1, 1, 1], [1, 0, 1]])
    gapped_rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 3.0]])
    index = torch.tensor([0, 0])
    plain, _ = compute_tir_optimal_token_baseline_advantage(rewards, plain_mask, index, **columns)
    moved, _ = compute_tir_optimal_token_baseline_advantage(gapped_rewards, gapped_mask, index, **gapped)
    torch.testing.assert_close(moved[0], plain[0])
    torch.testing.assert_close(moved[1, [0, 2]], plain[1, [0, 1]])
    assert float(plain[0, 2]) == 1.0  # past the second-longest row nothing is subtracted
    by_position, _ = compute_optimal_token_baseline_advantage(rewards, plain_mask, index, **columns)
    torch.testing.assert_close(plain[:, :2], by_position[:, :2])


def test_gdpo_normalizes_each_part_before_weighing_them() -> None:
    mask = torch.ones(4, 2)
    parts = {"right": torch.tensor([1.0, 0.0, 1.0, 0.0]), "short": np.array([100.0, 100.0, 0.0, 0.0], dtype=object)}
    index = torch.zeros(4, dtype=torch.long)
    rewards = torch.zeros(4, 2)
    equal, _ = compute_gdpo_outcome_advantage(rewards, mask, index, parts)
    best = float(equal[0, 0])
    assert best > 0 and equal[:, 0].tolist() == pytest.approx([best, 0.0, 0.0, -best], abs=1e-4)
    only, _ = compute_gdpo_outcome_advantage(rewards, mask, index, parts, reward_weights={"right": 2.0})
    best = float(only[0, 0])
    assert best > 0 and only[:, 0].tolist() == pytest.approx([best, -best] * 2)
    assert float(only.var()) == pytest.approx(1.0, abs=1e-5)


def test_gdpo_refuses_a_weight_for_a_part_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="did you mean 'right'"):
        compute_gdpo_outcome_advantage(
            torch.zeros(2, 1), torch.ones(2, 1), torch.tensor([0, 0]), {"right": torch.ones(2)}, {"rigt": 1.0}
        )
