"""Every advantage estimator against an independent one, written here with plain loops over rows and tokens."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from podium.algorithms import AdvantageEstimator, get_adv_estimator_fn
from podium.config.schema import AlgorithmConfig

Rows = list[list[float]]
Batch = dict[str, Any]
GAMMA, LAM = 0.93, 0.8


def make_batch(seed: int) -> Batch:
    rng = random.Random(seed)
    count, width = rng.randint(4, 10), rng.randint(2, 8)

    def table(draw: Callable[[], float]) -> Rows:
        return [[draw() for _ in range(width)] for _ in range(count)]

    mask = [[int(rng.random() < 0.75) for _ in range(width)] for _ in range(count)]
    for row in mask:
        if not any(row):
            row[rng.randrange(width)] = 1
    return {
        "mask": mask,
        "rewards": table(lambda: rng.choice([0.0, 0.0, 0.0, 1.0, rng.gauss(0, 0.3)])),
        "values": table(lambda: rng.gauss(0, 1)),
        "pi": table(lambda: rng.uniform(0.05, 0.95)),
        "squares": table(lambda: rng.uniform(0.1, 1.0)),
        "baselines": [rng.gauss(0, 1) for _ in range(count)],
        "parts": {name: [rng.choice([0.0, 1.0, 0.3]) for _ in range(count)] for name in ("accuracy", "format")},
        "uid": [f"p{rng.randrange(3)}" for _ in range(count)],
    }


def model_tokens(batch: Batch, row: int) -> list[int]:
    return [t for t, m in enumerate(batch["mask"][row]) if m]


def token_rewards(batch: Batch, row: int) -> list[float]:
    """One reward per model token; what sits on an observation goes to the model token before it, or to the first."""
    tokens = model_tokens(batch, row)
    rewards = [0.0] * len(tokens)
    for t, reward in enumerate(batch["rewards"][row]):
        before = [k for k, place in enumerate(tokens) if place <= t]
        rewards[before[-1] if before else 0] += reward
    return rewards


def discounted(rewards: list[float]) -> list[float]:
    out, later = [], 0.0
    for reward in reversed(rewards):
        later = reward + GAMMA * later
        out.append(later)
    return out[::-1]


def spread(batch: Batch, per_row: list[list[float]]) -> Rows:
    """Numbers per model token back onto columns."""
    out = [[0.0] * len(row) for row in batch["mask"]]
    for i, numbers in enumerate(per_row):
        for t, number in zip(model_tokens(batch, i), numbers, strict=True):
            out[i][t] = number
    return out


def whitened(batch: Batch, per_row: list[list[float]]) -> list[list[float]]:
    everything = [x for row in per_row for x in row]
    mean = sum(everything) / len(everything)
    if len(everything) == 1:
        return [[x - mean for x in row] for row in per_row]
    variance = sum((x - mean) ** 2 for x in everything) / (len(everything) - 1)
    return [[(x - mean) / math.sqrt(variance + 1e-8) for x in row] for row in per_row]


def by_row(batch: Batch, scores: list[float]) -> list[list[float]]:
    return [[score] * len(model_tokens(batch, i)) for i, score in enumerate(scores)]


def peers(batch: Batch, row: int) -> list[int]:
    return [j for j, uid in enumerate(batch["uid"]) if uid == batch["uid"][row]]


def std(numbers: list[float]) -> float:
    mean = sum(numbers) / len(numbers)
    return math.sqrt(sum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1))


def group_scores(batch: Batch, outcome: list[float], score: Callable[[int, list[int]], float]) -> list[float]:
    """`score(i, group)` for every row, 0 in groups of one or of equal outcomes."""
    result = []
    for i in range(len(outcome)):
        group = peers(batch, i)
        numbers = [outcome[j] for j in group]
        flat = max(numbers) - min(numbers) <= 1e-6 * max(1.0, *map(abs, numbers))
        result.append(0.0 if flat else score(i, group))
    return result


def returns_of(batch: Batch) -> list[float]:
    return [sum(row) for row in batch["rewards"]]


def grpo_scores(batch: Batch, outcome: list[float]) -> list[float]:
    def score(i: int, group: list[int]) -> float:
        numbers = [outcome[j] for j in group]
        return (outcome[i] - sum(numbers) / len(numbers)) / (std(numbers) + 1e-6)

    return group_scores(batch, outcome, score)


def gae(batch: Batch) -> Rows:
    raw = []
    for i in range(len(batch["mask"])):
        values = [batch["values"][i][t] for t in model_tokens(batch, i)]
        rewards, row = token_rewards(batch, i), []
        for k in range(len(values)):
            total, weight = 0.0, 1.0
            for later in range(k, len(values)):  # the sum Σ (γλ)^l δ_{k+l}, not the recursion
                following = values[later + 1] if later + 1 < len(values) else 0.0
                total += weight * (rewards[later] + GAMMA * following - values[later])
                weight *= GAMMA * LAM
            row.append(total)
        raw.append(row)
    return spread(batch, whitened(batch, raw))


def grpo(batch: Batch) -> Rows:
    return spread(batch, by_row(batch, grpo_scores(batch, returns_of(batch))))


def grpo_passk(batch: Batch) -> Rows:
    outcome = returns_of(batch)

    def score(i: int, group: list[int]) -> float:
        ranked = sorted((outcome[j] for j in group), reverse=True)
        return (ranked[0] - ranked[1]) / (std(ranked) + 1e-6) if outcome[i] == ranked[0] else 0.0

    return spread(batch, by_row(batch, group_scores(batch, outcome, score)))


def rloo(batch: Batch) -> Rows:
    outcome = returns_of(batch)

    def score(i: int, group: list[int]) -> float:
        others = [outcome[j] for j in group if j != i]
        return outcome[i] - sum(others) / len(others)

    return spread(batch, by_row(batch, group_scores(batch, outcome, score)))


def opo(batch: Batch) -> Rows:
    outcome, length = returns_of(batch), [len(model_tokens(batch, i)) for i in range(len(batch["mask"]))]

    def score(i: int, group: list[int]) -> float:
        return outcome[i] - sum(length[j] * outcome[j] for j in group) / sum(length[j] for j in group)

    return spread(batch, by_row(batch, group_scores(batch, outcome, score)))


def gpg(batch: Batch) -> Rows:
    outcome = returns_of(batch)
    alpha = len(outcome) / max(1, sum(1 for x in outcome if x != 0))
    scores = group_scores(batch, outcome, lambda i, g: alpha * (outcome[i] - sum(outcome[j] for j in g) / len(g)))
    return spread(batch, by_row(batch, scores))


def reinforce_plus_plus(batch: Batch) -> Rows:
    returns = [discounted(token_rewards(batch, i)) for i in range(len(batch["mask"]))]
    return spread(batch, whitened(batch, returns))


def reinforce_plus_plus_baseline(batch: Batch) -> Rows:
    outcome = returns_of(batch)
    scores = group_scores(batch, outcome, lambda i, g: outcome[i] - sum(outcome[j] for j in g) / len(g))
    return spread(batch, whitened(batch, by_row(batch, scores)))


def remax(batch: Batch) -> Rows:
    rows = [discounted(token_rewards(batch, i)) for i in range(len(batch["mask"]))]
    return spread(batch, [[g - batch["baselines"][i] for g in row] for i, row in enumerate(rows)])


def token_baseline(batch: Batch, by_token: bool) -> Rows:
    """`by_token`: rows are compared by model-token number instead of by column."""
    returns, energy = [], []
    for i in range(len(batch["mask"])):
        returns.append(discounted(token_rewards(batch, i)))
        so_far, row = 0.0, []
        for t in model_tokens(batch, i):
            so_far += 1 - 2 * batch["pi"][i][t] + batch["squares"][i][t]
            row.append(so_far)
        energy.append(row)
    result = []
    for i in range(len(batch["mask"])):
        row = []
        for k, t in enumerate(model_tokens(batch, i)):
            top, bottom, present = 0.0, 1e-8, 0
            for j in peers(batch, i):
                places = model_tokens(batch, j)
                where = k if by_token else (places.index(t) if t in places else len(places))
                if where < len(places):
                    top += returns[j][where] * energy[j][where]
                    bottom += energy[j][where]
                    present += 1
            baseline = 0.0 if by_token and present == 1 else top / bottom
            row.append(returns[i][k] - baseline)
        result.append(row)
    return spread(batch, result)


def gdpo(batch: Batch) -> Rows:
    total = [0.0] * len(batch["mask"])
    for name, weight in (("accuracy", 0.7), ("format", 0.2)):
        for i, score in enumerate(grpo_scores(batch, batch["parts"][name])):
            total[i] += weight * score
    return spread(batch, whitened(batch, by_row(batch, total)))


PLAIN: dict[str, Callable[[Batch], Rows]] = {
    "gae": gae,
    "grpo": grpo,
    "grpo_passk": grpo_passk,
    "rloo": rloo,
    "opo": opo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "remax": remax,
    "gpg": gpg,
    "optimal_token_baseline": lambda batch: token_baseline(batch, by_token=False),
    "tir_optimal_token_baseline": lambda batch: token_baseline(batch, by_token=True),
    "gdpo": gdpo,
}


def test_every_estimator_has_its_plain_twin() -> None:
    assert set(PLAIN) == {str(name) for name in AdvantageEstimator}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("seed", range(8))
def test_the_estimator_agrees_with_plain_loops(name: str, seed: int) -> None:
    batch = make_batch(seed)
    tensors = {
        k: torch.tensor(batch[k], dtype=torch.float64) for k in ("rewards", "values", "pi", "squares", "baselines")
    }
    advantages, _ = get_adv_estimator_fn(name)(
        tensors["rewards"],
        torch.tensor(batch["mask"]),
        index=np.array(batch["uid"], dtype=object),
        values=tensors["values"],
        gamma=GAMMA,
        lam=LAM,
        config=AlgorithmConfig(reward_weights={"accuracy": 0.7, "format": 0.2}),
        reward_baselines=tensors["baselines"],
        old_log_probs=tensors["pi"].log(),
        sum_pi_squared=tensors["squares"],
        reward_parts=batch["parts"],
    )
    torch.testing.assert_close(advantages, torch.tensor(PLAIN[name](batch), dtype=torch.float64), rtol=1e-9, atol=1e-9)
