"""GRPO learns with vLLM and SGLang as it does with the native engine: beside the trainer, and in a pool of its own.

Half the steps of tests/learning, for time; bench/RESULTS.md has the curves of all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from podium.config import load_config
from podium.single_controller import shutdown_ray
from podium.tracking import read_metrics
from podium.trainer.main_ppo import run_ppo

ACCURACY = "val-core/addition/reward/mean@1"
STEPS = 12
PLACES = {"colocated": [], "own_pool": ["trainer.runtime=ray", "actor_rollout_ref.rollout.nnodes=1"]}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("place", PLACES)
def test_held_out_accuracy_rises(engine_name: str, engine_python: str, place: str, tmp_path: Path) -> None:
    words = [
        "data.train_batch_size=64",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.actor.optim.lr=3e-4",
        f"trainer.total_training_steps={STEPS}",
        "trainer.test_freq=-1",
        "trainer.save_freq=0",
        "trainer.logger=[]",
        f"trainer.default_local_dir={tmp_path}",
        f"actor_rollout_ref.rollout.name={engine_name}",
        f"actor_rollout_ref.rollout.python={engine_python}",
        "actor_rollout_ref.rollout.kv_cache_gb=1",
        *PLACES[place],
    ]
    try:
        run_ppo(load_config("recipes/quickstart.yaml", words))
    finally:
        shutdown_ray()
    steps = read_metrics(tmp_path)
    trained = [step for step in steps if "publish/version" in step]
    assert steps[0][ACCURACY] <= 0.40 and steps[-1][ACCURACY] >= 0.60
    assert max(step["rollout_corr/prob_diff"] for step in trained) < 1e-3
    assert max(step["publish/probe_difference"] for step in trained) < 1e-4
    assert [step["publish/version"] for step in trained] == list(range(1, STEPS + 1))
