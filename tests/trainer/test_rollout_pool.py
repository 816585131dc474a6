"""Rollout workers in a pool of their own: the run is the one in which each worker does both."""

from __future__ import annotations

from pathlib import Path

import pytest

from podium.config import load_config
from podium.errors import ConfigError
from podium.single_controller import shutdown_ray
from podium.tracking import read_metrics
from podium.trainer.main_ppo import run_ppo

SMALL = [
    "data.train_files=task:addition?rows=24",
    "data.val_files=[]",
    "data.train_batch_size=4",
    "data.max_response_length=6",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.kv_cache_gb=0.02",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "trainer.total_training_steps=3",
    "trainer.val_before_train=false",
    "trainer.save_freq=0",
    "trainer.logger=[]",
]
POOL = ["trainer.runtime=ray", "actor_rollout_ref.rollout.nnodes=1"]


@pytest.mark.slow
def test_samples_updates_and_versions_are_the_same(tmp_path: Path) -> None:
    run_ppo(load_config(None, [*SMALL, f"trainer.default_local_dir={tmp_path}/both"]))
    try:
        run_ppo(load_config(None, [*SMALL, *POOL, f"trainer.default_local_dir={tmp_path}/apart"]))
    finally:
        shutdown_ray()
    both, apart = read_metrics(tmp_path / "both"), read_metrics(tmp_path / "apart")
    assert len(both) == len(apart) == 3
    for one, other in zip(both, apart, strict=True):
        for key in ("critic/score/mean", "response_length/mean", "publish/version"):
            assert one[key] == other[key]
        for key in ("actor/pg_loss", "actor/grad_norm", "actor/entropy"):
            assert one[key] == pytest.approx(other[key], abs=1e-5)
        assert other["publish/bytes"] > one["publish/bytes"] == 0 and other["publish/probe_difference"] < 1e-4


def test_a_pool_needs_ray() -> None:
    assert load_config(None, POOL[1:]).trainer.runtime == "ray"
    with pytest.raises(ConfigError, match=r"rollout.nnodes asks for a pool .* set trainer.runtime=ray"):
        run_ppo(load_config(None, ["trainer.runtime=local", *POOL[1:]]))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("actor_rollout_ref.rollout.python=/x", "python is for name=vllm or sglang; name is native"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size=2", "needs name=vllm or sglang"),
        ("actor_rollout_ref.rollout.engine_timeout_s=0", "engine_timeout_s = 0.0 must be above 0"),
    ],
)
def test_settings_of_an_engine_that_is_not_used_are_refused(word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run_ppo(load_config(None, [word]))
