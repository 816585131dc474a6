"""Validation numbers by data source, with the unbiased forms over several samples."""

from __future__ import annotations

import itertools
import statistics

import pytest

from podium.tracking import Sample
from podium.trainer.validation import draws, summarize


def samples(source: str, uid: str, scores: list[float], preds: list[str | None] | None = None) -> list[Sample]:
    answers = preds or [None] * len(scores)
    extra = [{"pred": pred} if preds else {} for pred in answers]
    return [
        Sample("q", "a", score, uid=uid, data_source=source, extra=e) for score, e in zip(scores, extra, strict=True)
    ]


def test_each_source_has_its_own_numbers():
    metrics = summarize([*samples("a", "1", [1.0]), *samples("a", "2", [0.0]), *samples("b/c", "3", [1.0])])
    assert metrics["val-core/a/reward/mean@1"] == metrics["val/test_score/a"] == 0.5
    assert metrics["val-core/b/c/reward/mean@1"] == 1.0
    assert not any("best" in name for name in metrics)


def test_best_worst_and_majority_are_the_average_over_all_draws():
    scores, preds = [1.0, 0.0, 0.0, 0.5], ["x", "y", "y", "z"]
    metrics = summarize(samples("a", "1", scores, preds))
    for k in (2, 4):
        pairs = list(itertools.combinations(range(4), k))
        best = statistics.mean(max(scores[i] for i in pair) for pair in pairs)
        worst = statistics.mean(min(scores[i] for i in pair) for pair in pairs)
        assert metrics[f"val-core/a/reward/best@{k}"] == pytest.approx(best)
        assert metrics[f"val-core/a/reward/worst@{k}"] == pytest.approx(worst)
    assert metrics["val-core/a/reward/maj@4"] == 0.0
    assert metrics["val-core/a/reward/std@4"] == pytest.approx(statistics.stdev(scores))


def test_samples_without_an_answer_do_not_form_a_majority():
    metrics = summarize(samples("a", "1", [1.0, 0.0, 0.0], ["x", None, None]))
    assert metrics["val-core/a/reward/maj@3"] == pytest.approx(1 / 3)


def test_a_prompt_that_lost_samples_counts_where_it_has_enough():
    metrics = summarize([*samples("a", "1", [1.0, 0.0, 0.0, 0.0]), *samples("a", "2", [1.0, 1.0])])
    assert metrics["val-core/a/reward/best@4"] == 1.0
    assert metrics["val-core/a/reward/best@2"] == pytest.approx((0.5 + 1.0) / 2)


def test_k_are_powers_of_two_up_to_n():
    assert [draws(n) for n in (2, 3, 4, 6, 8)] == [[2], [2, 3], [2, 4], [2, 4, 6], [2, 4, 8]]


def test_several_validation_samples_in_a_run(run):
    kwargs = "actor_rollout_ref.rollout.val_kwargs"
    steps = run(f"{kwargs}.n=4", f"{kwargs}.do_sample=true", "trainer.val_only=true")
    names = {name.rpartition("/")[2] for name in steps[0] if name.startswith("val-core/addition/reward")}
    assert names == {"mean@4", "std@4", "best@2", "best@4", "worst@2", "worst@4"}
