"""Every policy loss, aggregation and the value loss against independent ones, written here with plain loops.

Gradients are checked too, against central differences of the plain loss; what a formula stops the gradient of is held
fixed there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch

from podium.algorithms import LOSS_AGG_MODES, agg_loss, compute_value_loss, get_policy_loss_fn, policy_loss_names
from podium.config.schema import ActorConfig, PolicyLossConfig

Rows = list[list[float]]
LOW, HIGH, C = 0.15, 0.25, 3.0
SETTINGS = PolicyLossConfig(dro_beta=0.3, ppo_kl_coef=0.6, tau_pos=1.0, tau_neg=1.05)
CONFIG = ActorConfig(clip_ratio_low=LOW, clip_ratio_high=HIGH, clip_ratio_c=C, policy_loss=SETTINGS)


class Batch:
    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        rows, width = rng.randint(2, 5), rng.randint(2, 5)
        shape = [[0] * width for _ in range(rows)]
        self.mask = [[int(rng.random() < 0.75) for _ in row] for row in shape]
        self.mask[0][0] = 1
        self.old = [[math.log(rng.uniform(0.05, 0.95)) for _ in row] for row in shape]
        self.new = [[min(-0.01, x + rng.gauss(0, 0.5)) for x in row] for row in self.old]
        self.advantages = [[rng.gauss(0, 1.5) for _ in row] for row in shape]
        self.weights = [[rng.uniform(0.3, 2.0) for _ in row] for row in shape]
        self.selected = [[int(m and rng.random() < 0.3) for m in row] for row in self.mask]


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def ppo(new: float, old: float, a: float) -> float:
    ratio = math.exp(new - old)
    return max(-a * ratio, -a * clip(ratio, 1 - LOW, 1 + HIGH))


def vanilla(new: float, old: float, a: float, fixed: float, selected: int) -> float:
    loss = ppo(new, old, a)
    return min(loss, -C * a) if a < 0 else loss


def sapo(new: float, old: float, a: float, fixed: float, selected: int) -> float:
    tau = 1.0 if a > 0 else 1.05
    return -a * 4 / tau / (1 + math.exp(-tau * (math.exp(new - old) - 1)))


def cispo(new: float, old: float, a: float, fixed: float, selected: int) -> float:
    return -clip(math.exp(fixed - old), 1 - LOW, 1 + HIGH) * a * new


def plain_gradient(new: float, old: float, a: float, fixed: float, selected: int) -> float:
    return -a * new


def dro(new: float, old: float, a: float, fixed: float, selected: int) -> float:
    return -(new * a - 0.5 * 0.3 * (new - old) ** 2)


def clip_cov(new: float, old: float, a: float, fixed: float, selected: int) -> float:
    return 0.0 if selected else ppo(new, old, a)


def kl_cov(new: float, old: float, a: float, fixed: float, selected: int) -> float:
    return -a * math.exp(new - old) + (0.6 * abs(new - old) if selected else 0.0)


def dppo_tv(new: float, old: float, a: float, fixed: float, selected: int) -> float:
    moved = math.exp(fixed) - math.exp(old)
    if moved > HIGH if a > 0 else moved < -LOW:
        return 0.0
    return -a * min(math.exp(fixed - old), 20.0) * new


def dppo_kl(new: float, old: float, a: float, fixed: float, selected: int) -> float:
    p, q = math.exp(old), math.exp(fixed)
    divergence = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    kept = (divergence <= HIGH or q <= p) if a > 0 else (divergence <= LOW or q >= p)
    return -a * min(math.exp(fixed - old), 20.0) * new if kept else 0.0


TOKEN_LOSSES: dict[str, Callable[[float, float, float, float, int], float]] = {
    "vanilla": vanilla,
    "sapo": sapo,
    "cispo": cispo,
    "gpg": plain_gradient,
    "reinforce": plain_gradient,
    "dro": dro,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
}


def aggregate(losses: Rows, mask: list[list[int]], mode: str, l_max: float) -> float:
    kept = [[x for x, m in zip(row, keep, strict=True) if m] for row, keep in zip(losses, mask, strict=True)]
    kept = [row for row in kept if row]
    if mode == "token-mean":
        return sum(map(sum, kept)) / sum(map(len, kept))
    if mode == "seq-mean-token-sum":
        return sum(map(sum, kept)) / len(kept)
    if mode == "seq-mean-token-mean":
        return sum(sum(row) / len(row) for row in kept) / len(kept)
    return sum(map(sum, kept)) / (len(kept) * l_max)


def token_loss(name: str, mode: str, batch: Batch, new: Rows) -> float:
    losses = [
        [
            TOKEN_LOSSES[name](
                new[i][t], batch.old[i][t], batch.advantages[i][t], batch.new[i][t], batch.selected[i][t]
            )
            * batch.weights[i][t]
            for t in range(len(new[i]))
        ]
        for i in range(len(new))
    ]
    return aggregate(losses, batch.mask, mode, 9.0)


def gspo(batch: Batch, new: Rows) -> float:
    losses = []
    for i, row in enumerate(new):
        tokens = [t for t, m in enumerate(batch.mask[i]) if m]
        mean = sum(batch.new[i][t] - batch.old[i][t] for t in tokens) / max(1, len(tokens))
        out = [0.0] * len(row)
        for t in tokens:
            ratio = math.exp(min(row[t] - batch.new[i][t] + mean, 10.0))
            a = batch.advantages[i][t]
            out[t] = max(-a * ratio, -a * clip(ratio, 1 - LOW, 1 + HIGH)) * batch.weights[i][t]
        losses.append(out)
    return aggregate(losses, batch.mask, "seq-mean-token-mean", 9.0)


def geo_mean(batch: Batch, new: Rows) -> float:
    total, count = 0.0, 0
    for i, row in enumerate(new):
        tokens = [t for t, m in enumerate(batch.mask[i]) if m]
        if not tokens:
            continue
        exponent = 0.0
        for t in tokens:
            d, a = row[t] - batch.old[i][t], batch.advantages[i][t]
            exponent += (min(d, clip(d, -LOW, HIGH)) if a > 0 else max(d, clip(d, -LOW, HIGH))) / len(tokens)
        mean_advantage = sum(batch.advantages[i][t] for t in tokens) / len(tokens)
        weight = math.exp(sum(math.log(batch.weights[i][t]) for t in tokens) / len(tokens))
        total += -mean_advantage * math.exp(exponent) * weight
        count += 1
    return total / count


def plain_loss(name: str, mode: str, batch: Batch, new: Rows) -> float:
    if name == "gspo":
        return gspo(batch, new)
    if name == "geo_mean":
        return geo_mean(batch, new)
    return token_loss(name, mode, batch, new)


def plain_derivatives(name: str, mode: str, batch: Batch, step: float = 1e-6) -> Rows:
    out = [[0.0] * len(row) for row in batch.new]
    for i, row in enumerate(batch.new):
        for t in range(len(row)):
            sides = []
            for sign in (1, -1):
                moved = [list(r) for r in batch.new]
                moved[i][t] += sign * step
                sides.append(plain_loss(name, mode, batch, moved))
            out[i][t] = (sides[0] - sides[1]) / (2 * step)
    return out


def f64(rows: Rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_every_loss_has_its_plain_twin() -> None:
    assert {*TOKEN_LOSSES, "gspo", "geo_mean"} == set(policy_loss_names())


@pytest.mark.parametrize("name", policy_loss_names())
@pytest.mark.parametrize("seed", range(6))
def test_loss_and_gradient_agree_with_plain_loops(name: str, seed: int) -> None:
    batch, entry = Batch(seed), get_policy_loss_fn(name)
    mode = entry.agg_mode(LOSS_AGG_MODES[seed % len(LOSS_AGG_MODES)])  # type: ignore[arg-type]
    log_prob = f64(batch.new).requires_grad_()
    loss_sum, metrics = entry(
        f64(batch.old),
        log_prob,
        f64(batch.advantages),
        torch.tensor(batch.mask),
        mode,
        CONFIG,
        f64(batch.weights),
        torch.tensor(batch.selected) if entry.needs_selection else None,
        9.0,
    )
    loss = loss_sum / metrics["actor/pg_loss"].weight
    assert float(loss.detach()) == pytest.approx(plain_loss(name, mode, batch, batch.new), rel=1e-9, abs=1e-12)
    (gradient,) = torch.autograd.grad(loss, log_prob)
    torch.testing.assert_close(gradient, f64(plain_derivatives(name, mode, batch)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
@pytest.mark.parametrize("seed", range(4))
def test_aggregation_agrees_with_plain_loops(mode: str, seed: int) -> None:
    batch = Batch(seed)
    ours = agg_loss(f64(batch.advantages), torch.tensor(batch.mask), mode, 9.0)
    assert float(ours) == pytest.approx(aggregate(batch.advantages, batch.mask, mode, 9.0))


@pytest.mark.parametrize("seed", range(4))
def test_the_value_loss_agrees_with_plain_loops(seed: int) -> None:
    batch = Batch(seed)
    losses, clipped = [], []
    for i, row in enumerate(batch.mask):
        pairs = []
        for t in range(len(row)):
            v, old, target = batch.new[i][t], batch.old[i][t], batch.advantages[i][t]
            pairs.append(((v - target) ** 2, (clip(v, old - 0.3, old + 0.3) - target) ** 2))
        losses.append([0.5 * max(pair) for pair in pairs])
        clipped.append([float(pair[1] > pair[0]) for pair in pairs])
    loss, clipfrac = compute_value_loss(
        f64(batch.new), f64(batch.advantages), f64(batch.old), torch.tensor(batch.mask), 0.3
    )
    assert float(loss) == pytest.approx(aggregate(losses, batch.mask, "token-mean", 1.0))
    assert float(clipfrac) == pytest.approx(aggregate(clipped, batch.mask, "token-mean", 1.0))
