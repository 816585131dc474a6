"""Every estimator with every loss takes two real steps of the trainer, finite and without a warning."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podium.algorithms import AdvantageEstimator, policy_loss_names

Run = Callable[..., list[dict[str, Any]]]

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    right = float(solution_str == ground_truth)
    short = float(len(solution_str) <= 3)
    return {"score": right + 0.1 * short, "right": right, "short": short}
"""


@pytest.mark.parametrize("loss", policy_loss_names())
@pytest.mark.parametrize("estimator", [str(e) for e in AdvantageEstimator])
def test_two_real_steps(run: Run, tmp_path: Path, estimator: str, loss: str) -> None:
    file = tmp_path / "reward.py"
    file.write_text(REWARD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps = run(
            f"algorithm.adv_estimator={estimator}",
            f"actor_rollout_ref.actor.policy_loss.loss_mode={loss}",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
            "data.train_batch_size=4",
            f"reward.custom_reward_function={file}:compute_score",
            "trainer.test_freq=-1",
            "data.val_files=task:addition?rows=4",
        )
    for step in steps:
        for name in ("actor/pg_loss", "actor/grad_norm", "actor/entropy", "critic/advantages/max"):
            assert math.isfinite(step[name]), name
        assert step["actor/skipped_updates"] == 0
