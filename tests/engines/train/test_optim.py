"""The learning rate follows its schedule from the step count alone."""

from __future__ import annotations

import pytest
import torch

from podium.config.schema import OptimConfig
from podium.engines.train.optim import check_schedule, lr_factor, make_optimizer
from podium.errors import ConfigError


def rates(config: OptimConfig, total: int) -> list[float]:
    return [lr_factor(config, step, total) for step in range(total)]


def test_warm_up_starts_above_zero_and_reaches_the_peak_on_time() -> None:
    assert rates(OptimConfig(lr_warmup_steps=4), 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_a_decay_falls_from_the_peak_to_its_floor_at_the_last_step(decay: str) -> None:
    config = OptimConfig(lr_warmup_steps=2, lr_decay=decay, min_lr_ratio=0.1)  # type: ignore[arg-type]
    factors = rates(config, 12)
    assert factors[1] == factors[2] == 1.0
    assert factors[-1] == pytest.approx(0.1)
    assert factors[2:] == sorted(factors[2:], reverse=True)
    assert lr_factor(config, 100, 12) == pytest.approx(0.1)


def test_a_constant_rate_needs_no_end() -> None:
    check_schedule(OptimConfig(), None)
    assert lr_factor(OptimConfig(), 10**6, None) == 1.0


def test_a_decay_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.total_training_steps"):
        check_schedule(OptimConfig(lr_decay="linear"), None)


def test_adamw_takes_two_betas() -> None:
    parameter = torch.zeros(2, requires_grad=True)
    optimizer = make_optimizer([parameter], OptimConfig(lr=0.5, betas=[0.8, 0.9], weight_decay=0.2))
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"], group["fused"]) == (0.5, (0.8, 0.9), 0.2, True)
    with pytest.raises(ConfigError, match="two numbers"):
        make_optimizer([parameter], OptimConfig(betas=[0.9]))


def test_any_optimizer_of_torch_is_made_by_its_name() -> None:
    parameter = torch.zeros(2, 2, requires_grad=True)
    plain = make_optimizer([parameter], OptimConfig(name="sgd", lr=0.5, kwargs={"momentum": 0.8, "nesterov": True}))
    assert isinstance(plain, torch.optim.SGD)
    assert (plain.param_groups[0]["momentum"], plain.param_groups[0]["nesterov"]) == (0.8, True)
    assert isinstance(make_optimizer([parameter], OptimConfig(name="Adafactor")), torch.optim.Adafactor)
    assert isinstance(make_optimizer([parameter], OptimConfig(name="Muon")), torch.optim.Muon)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "AdamX"}, "did you mean Adam"),
        ({"name": "LBFGS"}, "no optimizer of torch"),
        ({"name": "SGD", "betas": [0.5, 0.6]}, "SGD has no such argument"),
        ({"name": "SGD", "kwargs": {"speed": 3}}, "unexpected keyword argument 'speed'"),
        ({"name": "SGD", "kwargs": {"momentum": -1.0}}, "Invalid momentum"),
    ],
)
def test_an_optimizer_that_cannot_be_made_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_optimizer([torch.zeros(2, requires_grad=True)], OptimConfig(**settings))  # type: ignore[arg-type]


def test_an_optimizer_of_torchao_is_made_by_its_name() -> None:
    torchao = pytest.importorskip("torchao.optim")
    made = make_optimizer([torch.zeros(2, requires_grad=True)], OptimConfig(name="AdamW8bit"))
    assert isinstance(made, torchao.AdamW8bit)
