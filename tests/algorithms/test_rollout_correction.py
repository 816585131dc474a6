from __future__ import annotations

import math

import pytest
import torch

from podium.algorithms import mismatch_warning, rollout_correction, rollout_correction_metrics
from podium.config.schema import RolloutCorrectionConfig
from podium.metric import merge_metrics

ROLL = torch.full((2, 3), -1.0)
LOG_R = torch.tensor([[0.1, -0.2, 1.2], [0.05, 0.0, float("nan")]])
TRAIN = ROLL + LOG_R
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])


def weights(**settings) -> list[list[float]]:
    correction = rollout_correction(TRAIN, ROLL, MASK, RolloutCorrectionConfig(**settings))
    assert correction.weights is not None and not correction.weights.requires_grad
    return correction.weights.tolist()


def flat(rows: list[list[float]]) -> list[float]:
    return [x for row in rows for x in row]


def test_golden_token_weights() -> None:
    assert flat(weights(mode="token")) == pytest.approx([1.105171, 0.818731, 2.0, 1.051271, 1.0, 0.0], abs=1e-6)


def test_golden_sequence_weights_are_the_same_for_every_token() -> None:
    assert flat(weights(mode="sequence")) == pytest.approx([2.0, 2.0, 2.0, 1.051271, 1.051271, 0.0], abs=1e-6)


def test_masking_silences_what_is_outside_the_band_on_either_side() -> None:
    assert flat(weights(mode="token", truncate="mask", threshold=1.1)) == pytest.approx(
        [0.0, 0.0, 0.0, 1.051271, 1.0, 0.0], abs=1e-6
    )
    assert flat(weights(mode="sequence", truncate="mask")) == pytest.approx(
        [0.0, 0.0, 0.0, 1.051271, 1.051271, 0.0], abs=1e-6
    )


def test_off_gives_no_weights_but_metrics() -> None:
    correction = rollout_correction(TRAIN, ROLL, MASK, RolloutCorrectionConfig())
    assert correction.weights is None and torch.equal(correction.response_mask, MASK)
    names = {"kl", "k3_kl", "prob_diff", "ppl_ratio", "ess", "max", "rejected"}
    assert set(correction.metrics) == {f"rollout_corr/{name}" for name in names}


@pytest.mark.parametrize("bounds", [{"reject_high": 1.2}, {"reject_low": 1.03, "reject_high": 1.1}])
def test_a_sequence_too_far_off_leaves_the_mask(bounds: dict[str, float]) -> None:
    """The geometric means are e^{1.1/3} = 1.443 and e^{.025} = 1.025."""
    correction = rollout_correction(TRAIN, ROLL, MASK, RolloutCorrectionConfig(mode="token", **bounds))
    kept = [0, 0, 0] if "reject_low" in bounds else [1, 1, 0]
    assert correction.response_mask.tolist() == [[0, 0, 0], kept]
    assert correction.metrics["rollout_corr/rejected"].result() == (1.0 if "reject_low" in bounds else 0.5)


def test_metrics_follow_their_formulas() -> None:
    metrics = {k: m.result() for k, m in rollout_correction_metrics(TRAIN, ROLL, MASK).items()}
    log_r = [0.1, -0.2, 1.2, 0.05, 0.0]
    w = [math.exp(x) for x in log_r]
    assert metrics["rollout_corr/kl"] == pytest.approx(-sum(log_r) / 5, abs=1e-6)
    assert metrics["rollout_corr/k3_kl"] == pytest.approx(sum(math.exp(x) - x - 1 for x in log_r) / 5, abs=1e-6)
    assert metrics["rollout_corr/ppl_ratio"] == pytest.approx((math.exp(-1.1 / 3) + math.exp(-0.025)) / 2, abs=1e-6)
    assert metrics["rollout_corr/ess"] == pytest.approx(sum(w) ** 2 / (5 * sum(x * x for x in w)), abs=1e-6)
    assert metrics["rollout_corr/max"] == pytest.approx(math.exp(1.2), abs=1e-5)
    gap = sum(abs(math.exp(-1 + x) - math.exp(-1)) for x in log_r) / 5
    assert metrics["rollout_corr/prob_diff"] == pytest.approx(gap, abs=1e-6)


def test_equal_policies_have_weight_one_and_full_sample_size() -> None:
    correction = rollout_correction(ROLL, ROLL, MASK, RolloutCorrectionConfig(mode="sequence"))
    assert correction.weights is not None and torch.equal(correction.weights, MASK.float())
    assert correction.metrics["rollout_corr/ess"].result() == pytest.approx(1.0)
    assert correction.metrics["rollout_corr/kl"].result() == 0.0
    assert mismatch_warning(correction.metrics["rollout_corr/prob_diff"].result()) is None


def test_parts_of_a_batch_merge_to_the_whole() -> None:
    parts = merge_metrics(
        rollout_correction_metrics(TRAIN[i : i + 1], ROLL[i : i + 1], MASK[i : i + 1]) for i in (0, 1)
    )
    whole = rollout_correction_metrics(TRAIN, ROLL, MASK)
    for name in ("kl", "k3_kl", "prob_diff", "ppl_ratio", "max"):
        key = f"rollout_corr/{name}"
        assert parts[key].result() == pytest.approx(whole[key].result(), abs=1e-6)


def test_a_large_gap_is_worth_a_warning() -> None:
    text = mismatch_warning(rollout_correction_metrics(TRAIN, ROLL, MASK)["rollout_corr/prob_diff"].result())
    assert text is not None and "0.01" in text and "rollout_correction" in text


@pytest.mark.parametrize(
    ("gap", "mode", "staleness", "says", "not_says"),
    [
        (0.02, "off", 0, "set algorithm.rollout_correction.mode", "lag"),
        (0.02, "token", 0, "mode=token weighs the loss for it", "set algorithm.rollout_correction.mode"),
        (0.02, "off", 1, "lag 1 update behind", "Check dtype"),
        (0.2, "token", 2, "lag 2 updates behind", "set algorithm.rollout_correction.mode"),
    ],
)
def test_the_warning_knows_the_correction_and_the_lag(
    gap: float, mode: str, staleness: int, says: str, not_says: str
) -> None:
    text = mismatch_warning(gap, mode, staleness)
    assert text is not None and says in text and not_says not in text


def test_a_gap_of_samples_that_lag_and_are_weighted_for_it_is_expected() -> None:
    assert mismatch_warning(0.02, "token", 1) is None


def test_a_ratio_beyond_all_bounds_stays_finite_and_an_empty_batch_is_legal() -> None:
    far = rollout_correction(
        torch.tensor([[-1.0, -1.0]]),
        torch.tensor([[-400.0, -400.0]]),
        torch.ones(1, 2),
        RolloutCorrectionConfig(mode="sequence", threshold=1e9),
    )
    assert far.weights is not None and bool(far.weights.isfinite().all())
    empty = rollout_correction(ROLL[:0], ROLL[:0], MASK[:0], RolloutCorrectionConfig(mode="token"))
    assert all(math.isfinite(m.result()) for m in empty.metrics.values())
