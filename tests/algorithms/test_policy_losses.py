from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from algorithm_cases import make_case
from torch import Tensor

from podium.algorithms import (
    add_regularizers,
    agg_count,
    compute_policy_loss,
    get_policy_loss_fn,
    policy_loss_names,
    register_policy_loss,
)
from podium.algorithms.losses import registry
from podium.config.schema import ActorConfig, PolicyLossConfig
from podium.errors import ConfigError

OLD = torch.tensor([[0.5, 0.2, 0.4], [0.3, 0.6, 0.1]]).log()
NEW = torch.tensor([[0.7, 0.1, 0.41], [0.8, 0.62, 0.45]]).log()
ADVANTAGES = torch.tensor([[1.0] * 3, [-1.0] * 3])
MASK = torch.ones(2, 3)
CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}


def loss_of(name: str, log_prob: Tensor = NEW, selection: Tensor | None = None, **settings: Any) -> tuple[float, Any]:
    """The mean over the whole batch, and the metrics."""
    config, entry = ActorConfig(**settings), get_policy_loss_fn(name)
    mode = entry.agg_mode("token-mean")
    loss_sum, metrics = entry(OLD, log_prob, ADVANTAGES, MASK, mode, config, selection=selection)
    loss = float(loss_sum.detach()) / agg_count(MASK, mode)
    assert metrics["actor/pg_loss"].result() == pytest.approx(loss, abs=1e-6)
    return loss, metrics


GOLDEN = [
    ("vanilla", CLIP, 0.649167),
    ("gspo", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}, 0.709673),
    ("geo_mean", CLIP, 0.718021),
    ("cispo", CLIP, 0.235136),
    ("sapo", {}, 0.494843),
]


@pytest.mark.parametrize(("name", "settings", "value"), GOLDEN)
def test_golden_values(name: str, settings: dict[str, float], value: float) -> None:
    assert loss_of(name, **settings)[0] == pytest.approx(value, abs=2e-6)


def test_golden_values_of_ppo_in_verls_shape() -> None:
    pg_loss, clipfrac, ppo_kl, lower = compute_policy_loss(
        OLD, NEW, ADVANTAGES, MASK, cliprange=0.2, cliprange_low=0.2, cliprange_high=0.28, clip_ratio_c=3.0
    )
    assert float(pg_loss) == pytest.approx(0.649167, abs=1e-6)
    assert float(clipfrac) == pytest.approx(1 / 6) and float(lower) == pytest.approx(1 / 6)
    assert float(ppo_kl) == pytest.approx(float((OLD - NEW).mean()), abs=1e-6)
    metrics = loss_of("vanilla", **CLIP)[1]
    assert metrics["actor/pg_clipfrac"].result() == pytest.approx(1 / 6)
    assert metrics["actor/pg_clipfrac_lower"].result() == pytest.approx(1 / 6)
    assert metrics["actor/ppo_kl"].result() == pytest.approx(float(ppo_kl), abs=1e-6)
    assert metrics["actor/ppo_kl_k2"].result() == pytest.approx(float(((OLD - NEW) ** 2 / 2).mean()), abs=1e-6)
    assert metrics["actor/ratio"].result() == pytest.approx(float((NEW - OLD).exp().mean()), abs=1e-6)
    assert metrics["actor/ratio_deviation"].result() == pytest.approx(float(((NEW - OLD).exp() - 1).square().mean()))
    bound_above = ((NEW - OLD).exp() > 1.28) & (ADVANTAGES > 0)
    assert metrics["actor/pg_clipfrac_high"].result() == pytest.approx(float(bound_above.float().mean()))


def test_ppo_token_losses_are_the_golden_ones() -> None:
    expected = [[-1.28, -0.5, -1.025], [2.666667, 1.033333, 3.0]]
    for row in range(2):
        for t in range(3):
            one = torch.zeros(2, 3)
            one[row, t] = 1.0
            loss, *_ = compute_policy_loss(OLD, NEW, ADVANTAGES, one, None, 0.2, 0.28)
            assert float(loss) == pytest.approx(expected[row][t], abs=1e-6)


def test_the_clip_range_falls_back_to_the_one_for_both_sides() -> None:
    both = loss_of("vanilla", clip_ratio=0.28, clip_ratio_low=0.2)[0]
    assert both == pytest.approx(0.649167, abs=1e-6)
    with pytest.raises(ConfigError, match="cliprange"):
        compute_policy_loss(OLD, NEW, ADVANTAGES, MASK, cliprange_low=0.1)
    with pytest.raises(ConfigError, match="above 1"):
        compute_policy_loss(OLD, NEW, ADVANTAGES, MASK, cliprange=0.1, clip_ratio_c=1.0)


def gradient(name: str, log_prob: Tensor, selection: Tensor | None = None, **settings: Any) -> Tensor:
    config, entry = ActorConfig(**settings), get_policy_loss_fn(name)
    log_prob = log_prob.clone().requires_grad_()
    loss, _ = entry(OLD, log_prob, ADVANTAGES, MASK, entry.agg_mode("token-mean"), config, selection=selection)
    (grad,) = torch.autograd.grad(loss, log_prob)
    return grad


@pytest.mark.parametrize("name", policy_loss_names())
def test_on_policy_every_loss_is_the_policy_gradient(name: str) -> None:
    """At ℓ = ℓ_old all losses have gradient −A (over |y| where each sequence is a mean)."""
    entry = get_policy_loss_fn(name)
    selection = torch.zeros(2, 3, dtype=torch.bool) if entry.needs_selection else None
    scale = 1 / 3 if entry.agg_mode("token-mean") == "seq-mean-token-mean" else 1.0
    torch.testing.assert_close(gradient(name, OLD, selection), -ADVANTAGES * scale)


def test_clipped_tokens_have_no_gradient() -> None:
    grad = gradient("vanilla", NEW, **CLIP)
    assert grad[0, 0] == 0.0 and grad[1, 2] == 0.0  # clipped above; dual-clipped
    assert bool((grad.flatten()[1:5] != 0).all())


def test_cispo_keeps_the_gradient_of_clipped_tokens() -> None:
    torch.testing.assert_close(gradient("cispo", NEW, **CLIP)[0, 0], torch.tensor(-1.28))


def test_dppo_tv_drops_tokens_whose_probability_moved_too_far() -> None:
    grad = gradient("dppo_tv", NEW, clip_ratio=0.15)
    # π − π_old = [.2, −.1, .01 | .5, .02, .35]; A > 0 in row 0 bounds rises, A < 0 in row 1 bounds falls.
    ratio = (NEW - OLD).exp()
    expected = -ADVANTAGES * ratio
    expected[0, 0] = 0.0
    torch.testing.assert_close(grad, expected)
    fallen = gradient("dppo_tv", torch.tensor([[0.5, 0.2, 0.4], [0.1, 0.6, 0.1]]).log(), clip_ratio=0.15)
    assert fallen[1, 0] == 0.0


def test_dppo_kl_drops_by_the_binary_divergence() -> None:
    p, q = 0.5, 0.7
    divergence = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    tight, loose = (gradient("dppo_kl", NEW, clip_ratio=divergence * factor) for factor in (0.99, 1.01))
    assert tight[0, 0] == 0.0 and loose[0, 0] != 0.0
    assert tight[0, 1] != 0.0  # fell with A > 0: pulled back, whatever the distance


def test_dro_pulls_back_to_the_old_policy() -> None:
    beta = 0.7
    grad = gradient("dro", NEW, policy_loss=PolicyLossConfig(dro_beta=beta))
    torch.testing.assert_close(grad, -ADVANTAGES + beta * (NEW - OLD))


def test_gpg_and_reinforce_are_the_plain_policy_gradient() -> None:
    for name in ("gpg", "reinforce"):
        torch.testing.assert_close(gradient(name, NEW), -ADVANTAGES)


@pytest.mark.parametrize("name", policy_loss_names())
def test_importance_weights_scale_the_loss_and_zero_weights_silence_a_row(name: str) -> None:
    entry, config = get_policy_loss_fn(name), ActorConfig()
    selection = torch.zeros(2, 3, dtype=torch.bool) if entry.needs_selection else None
    mode = entry.agg_mode("token-mean")

    def summed(weights: Tensor | None) -> float:
        return float(entry(OLD, NEW, ADVANTAGES, MASK, mode, config, weights, selection)[0])

    assert summed(torch.full((2, 3), 0.5)) == pytest.approx(0.5 * summed(None), rel=1e-5)
    only = torch.tensor([[1.0] * 3, [0.0] * 3])
    alone = entry(
        OLD[:1], NEW[:1], ADVANTAGES[:1], MASK[:1], mode, config, None, None if selection is None else selection[:1]
    )
    assert summed(only) == pytest.approx(float(alone[0]), rel=1e-5)


@pytest.mark.parametrize("name", policy_loss_names())
def test_nan_outside_the_mask_reaches_neither_loss_nor_gradient(name: str) -> None:
    entry, config = get_policy_loss_fn(name), ActorConfig()
    mode = entry.agg_mode("token-mean")
    mask = torch.tensor([[1, 0, 1], [1, 1, 0]])

    def result(fill: float) -> tuple[Tensor, Tensor]:
        old, new, advantages = (torch.where(mask.bool(), x, fill) for x in (OLD, NEW, ADVANTAGES))
        selection = entry.prepare(new, old, advantages, mask, config) if entry.needs_selection else None
        new = new.clone().requires_grad_()
        weights = torch.where(mask.bool(), 0.7, fill)
        loss, _ = entry(old, new, advantages, mask, mode, config, weights, selection)
        (grad,) = torch.autograd.grad(loss, new)
        return loss.detach(), grad

    for clean, dirty in zip(result(-1.0), result(float("nan")), strict=True):
        torch.testing.assert_close(dirty, clean)


@pytest.mark.parametrize("name", policy_loss_names())
def test_a_ratio_beyond_all_bounds_stays_finite(name: str) -> None:
    entry, config = get_policy_loss_fn(name), ActorConfig()
    selection = torch.ones(1, 2, dtype=torch.bool) if entry.needs_selection else None
    old, advantages, mask = torch.tensor([[-200.0, -1e-9]]), torch.tensor([[1.0, -1.0]]), torch.ones(1, 2)
    new = torch.tensor([[-1e-9, -200.0]], requires_grad=True)
    loss, metrics = entry(old, new, advantages, mask, entry.agg_mode("token-mean"), config, selection=selection)
    (grad,) = torch.autograd.grad(loss, new)
    assert bool(loss.isfinite()) and bool(grad.isfinite().all())
    assert all(math.isfinite(metric.result()) for metric in metrics.values())


def test_sequence_losses_refuse_another_aggregation() -> None:
    for name in ("gspo", "geo_mean"):
        entry = get_policy_loss_fn(name)
        assert entry.agg_mode("token-mean") == "seq-mean-token-mean"
        with pytest.raises(ConfigError, match="agg_mode"):
            entry(OLD, NEW, ADVANTAGES, MASK, "token-mean", ActorConfig())


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_losses_that_select_tokens_insist_on_a_selection(name: str) -> None:
    entry = get_policy_loss_fn(name)
    assert entry.needs_selection
    with pytest.raises(ConfigError, match=r"prepare\(\)"):
        entry(OLD, NEW, ADVANTAGES, MASK, "token-mean", ActorConfig())


def test_kl_cov_selects_the_tokens_of_largest_covariance() -> None:
    case = make_case(5, num_rows=8, width=7, group_size=2)
    entry, config = get_policy_loss_fn("kl_cov"), ActorConfig(policy_loss=PolicyLossConfig(kl_cov_ratio=0.2))
    new, old, advantages = (case.columns[k] for k in ("log_prob", "old_log_probs", "advantages"))
    mask = case.mask.bool()
    selection = entry.prepare(new, old, advantages, mask, config)
    covariance = (advantages - advantages[mask].mean()) * (new - new[mask].mean())
    number = int(0.2 * int(mask.sum()))
    assert number >= 2 and set(covariance[selection].tolist()) == set(covariance[mask].topk(number).values.tolist())


def test_clip_cov_selects_at_random_within_the_band() -> None:
    case = make_case(6, num_rows=40, width=20, group_size=4)
    new, old, advantages = (case.columns[k] for k in ("log_prob", "old_log_probs", "advantages"))
    mask = case.mask.bool()
    config = ActorConfig(policy_loss=PolicyLossConfig(clip_cov_ratio=0.05, clip_cov_lb=0.5, clip_cov_ub=3.0))
    entry = get_policy_loss_fn("clip_cov")
    draws = [entry.prepare(new, old, advantages, mask, config, seed=seed) for seed in (0, 0, 1)]
    covariance = (advantages - advantages[mask].mean()) * (new - new[mask].mean())
    for selection in draws:
        assert int(selection.sum()) == int(0.05 * int(mask.sum())) > 5
        assert bool(((covariance > 0.5) & (covariance < 3.0) & mask)[selection].all())
        clipped = torch.where(advantages > 0, (new - old).exp() > 1.2, (new - old).exp() < 0.8)
        assert not bool(clipped[selection].any())
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_at_least_one_token_is_selected_if_there_is_one() -> None:
    entry, config = get_policy_loss_fn("kl_cov"), ActorConfig()
    assert int(entry.prepare(NEW, OLD, ADVANTAGES, MASK, config).sum()) == 1
    assert int(entry.prepare(NEW, OLD, ADVANTAGES, torch.zeros(2, 3), config).sum()) == 0
    assert int(get_policy_loss_fn("clip_cov").prepare(NEW, OLD, ADVANTAGES, MASK, config).sum()) == 0  # empty band


def test_selected_tokens_are_silenced_by_clip_cov_and_penalized_by_kl_cov() -> None:
    selection = torch.zeros(2, 3, dtype=torch.bool)
    selection[0, 1] = True
    grad = gradient("clip_cov", NEW, selection, clip_ratio=0.2)
    assert grad[0, 1] == 0.0 and grad[0, 2] != 0.0
    settings = PolicyLossConfig(ppo_kl_coef=0.5)
    plain = gradient("kl_cov", NEW, torch.zeros_like(selection), policy_loss=settings)
    penalized = gradient("kl_cov", NEW, selection, policy_loss=settings)
    torch.testing.assert_close(penalized - plain, selection * 0.5 * (NEW - OLD).sign())


def test_entropy_and_kl_terms_are_added_as_sums() -> None:
    config = ActorConfig(entropy_coeff=0.1, use_kl_loss=True, kl_loss_coef=0.2, kl_loss_type="mse")
    entropy, ref = torch.full((2, 3), 2.0), OLD
    total, metrics = add_regularizers(
        torch.tensor(5.0), MASK, "token-mean", config, log_prob=NEW, ref_log_prob=ref, entropy=entropy
    )
    kl = 0.5 * (NEW - OLD).square().sum()
    assert float(total) == pytest.approx(5.0 - 0.1 * 12.0 + 0.2 * float(kl), abs=1e-5)
    assert metrics["actor/entropy"].result() == pytest.approx(2.0)
    assert metrics["actor/kl_loss"].result() == pytest.approx(float(kl) / 6, abs=1e-6)
    assert metrics["actor/kl_coef"].result() == 0.2
    same, metrics = add_regularizers(torch.tensor(5.0), MASK, "token-mean", ActorConfig(), entropy=entropy)
    assert float(same) == 5.0 and set(metrics) == {"actor/entropy"}


def test_every_loss_cites_its_paper() -> None:
    for name in policy_loss_names():
        text = get_policy_loss_fn(name).__doc__ or ""
        assert "arXiv:" in text or "Williams" in text


def test_an_unknown_loss_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'vanilla'"):
        get_policy_loss_fn("vanila")


def test_a_loss_may_live_in_the_users_own_file(tmp_path: Path) -> None:
    path = tmp_path / "own_loss.py"
    path.write_text(
        "from podium.algorithms import finish_policy_loss, log_ratio\n"
        "def plain(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, l_max=None):\n"
        "    losses = -advantages * log_prob\n"
        "    d = log_ratio(log_prob, old_log_prob)\n"
        "    return finish_policy_loss(losses, response_mask, loss_agg_mode, l_max, d)\n"
    )
    own, gpg = get_policy_loss_fn(f"{path}:plain"), get_policy_loss_fn("gpg")
    args = (OLD, NEW, ADVANTAGES, MASK, "seq-mean-token-sum-norm", ActorConfig())
    assert float(own(*args, l_max=3)[0]) == float(gpg(*args, l_max=3)[0])
    assert own(*args, l_max=3)[1] == gpg(*args, l_max=3)[1]


def test_a_registered_loss_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))

    @register_policy_loss("zero")
    def zero(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):
        return (log_prob * 0).sum(), {}

    loss, metrics = get_policy_loss_fn("zero")(OLD, NEW, ADVANTAGES, MASK, "token-mean", ActorConfig())
    assert float(loss) == 0.0 and metrics == {}
    with pytest.raises(ConfigError, match="already"):
        register_policy_loss("vanilla")(zero)
