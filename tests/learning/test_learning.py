"""The trainer really teaches: held-out accuracy of the built-in model rises far within some twenty steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from podium.config import load_config
from podium.tracking import read_metrics
from podium.trainer.main_ppo import run_ppo

ACCURACY = "val-core/addition/reward/mean@1"

ALGORITHMS = {
    "grpo": ["algorithm.adv_estimator=grpo"],
    "ppo": [
        "algorithm.adv_estimator=gae",
        "algorithm.lam=0.95",
        "critic.optim.lr=1e-3",
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_ctrl.type=adaptive",
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        "actor_rollout_ref.actor.optim.lr=1e-4",
    ],
    "rloo": ["algorithm.adv_estimator=rloo"],
    "reinforce_plus_plus": ["algorithm.adv_estimator=reinforce_plus_plus"],
    "remax": ["algorithm.adv_estimator=remax"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_held_out_accuracy_rises(name: str, tmp_path: Path) -> None:
    words = [
        "data.train_batch_size=64",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.actor.optim.lr=3e-4",
        "trainer.total_training_steps=24",
        "trainer.test_freq=-1",
        "trainer.save_freq=0",
        "trainer.logger=[]",
        f"trainer.default_local_dir={tmp_path}",
        *ALGORITHMS[name],
    ]
    run_ppo(load_config("recipes/quickstart.yaml", words))
    steps = read_metrics(tmp_path)
    assert steps[0][ACCURACY] <= 0.40
    assert steps[-1][ACCURACY] >= 0.80
