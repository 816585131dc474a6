from __future__ import annotations

import math

import pytest
import torch

from podium.algorithms import (
    AdaptiveKLController,
    FixedKLController,
    get_kl_controller,
    kl_penalty,
    subtract_kl,
)
from podium.config.schema import KLControlConfig
from podium.errors import ConfigError

P, Q = torch.tensor([0.5]).log(), torch.tensor([0.4]).log()


@pytest.mark.parametrize(
    ("names", "value"),
    [
        (("kl", "k1"), 0.223144),
        (("abs",), 0.223144),
        (("mse", "k2"), 0.0248965),
        (("low_var_kl", "k3"), 0.0231436),
    ],
)
def test_golden_values(names: tuple[str, ...], value: float) -> None:
    for name in names:
        assert float(kl_penalty(P, Q, name)) == pytest.approx(value, abs=1e-6)
        assert float(kl_penalty(P, Q, name + "+")) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("name", ["kl+", "abs+", "k3+"])
def test_a_plus_takes_the_gradient_of_k2(name: str) -> None:
    logprob = P.clone().requires_grad_()
    kl_penalty(logprob, Q, name).sum().backward()
    torch.testing.assert_close(logprob.grad, P - Q)


def test_k3_is_unbiased_and_bounded() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    exact = (p * (p / q).log()).sum()
    torch.testing.assert_close((p * kl_penalty(p.log(), q.log(), "k3")).sum(), exact)
    torch.testing.assert_close((p * kl_penalty(p.log(), q.log(), "k1")).sum(), exact)
    far = kl_penalty(torch.tensor([-100.0, 100.0]), torch.tensor([0.0, 0.0]), "k3")
    assert far.tolist() == [10.0, 10.0]


def test_an_unknown_estimator_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'low_var_kl'"):
        kl_penalty(P, Q, "low_var")


def test_kl_in_the_reward_keeps_a_terminal_observations_score() -> None:
    scores = torch.tensor([[0.0, 0.0, 1.0], [0.0, 2.0, 0.0]])
    old = torch.tensor([[-1.0, -2.0, float("nan")], [-1.0, -1.0, -1.0]])
    ref = torch.tensor([[-1.5, -1.0, 0.0], [-1.0, -2.0, float("nan")]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0]])
    rewards, current = subtract_kl(scores, old, ref, mask, beta=0.1)
    torch.testing.assert_close(rewards, torch.tensor([[-0.05, 0.1, 1.0], [0.0, 1.9, 0.0]]))
    assert current == pytest.approx(((0.5 - 1.0) / 2 + (0.0 + 1.0) / 2) / 2)


def test_the_adaptive_controller_follows_the_golden_value() -> None:
    controller = AdaptiveKLController(0.001, target_kl=0.1, horizon=1e4)
    controller.update(current_kl=0.25, n_steps=512)
    assert controller.value == pytest.approx(0.00101024, rel=1e-9)


def test_the_adaptive_controller_lowers_beta_when_kl_is_low_and_never_below_zero() -> None:
    controller = AdaptiveKLController(1.0, target_kl=0.1, horizon=10)
    controller.update(0.0, 1)
    assert controller.value == pytest.approx(0.98)
    controller.update(0.0, 10_000)
    assert controller.value > 0.0
    before = controller.value
    controller.update(math.nan, 512)
    assert controller.value == before


def test_beta_survives_a_checkpoint() -> None:
    controller = AdaptiveKLController(0.5, 0.1, 100)
    controller.update(1.0, 50)
    fresh = AdaptiveKLController(0.5, 0.1, 100)
    fresh.load_state_dict(controller.state_dict())
    assert fresh.value == controller.value != 0.5


def test_controllers_are_made_from_the_config() -> None:
    adaptive = get_kl_controller(KLControlConfig(type="adaptive", kl_coef=0.2, target_kl=0.3, horizon=7))
    assert isinstance(adaptive, AdaptiveKLController) and adaptive.value_at(5, 10) == 0.2
    fixed = get_kl_controller(KLControlConfig(kl_coef=0.2))
    fixed.update(100.0, 100)
    assert isinstance(fixed, FixedKLController) and fixed.value_at(0, 10) == 0.2


def test_a_fixed_coefficient_may_follow_a_schedule() -> None:
    controller = get_kl_controller(KLControlConfig(kl_coef=0.2, schedule="linear", warmup_ratio=0.5))
    assert [controller.value_at(step, 100) for step in (0, 25, 50, 99)] == pytest.approx([0.0, 0.1, 0.2, 0.2])


def test_a_controller_without_a_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="positive"):
        AdaptiveKLController(0.1, target_kl=0.0, horizon=10)
