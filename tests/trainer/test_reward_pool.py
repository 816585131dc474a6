"""A reward model in a pool of its own scores as one beside the policy does."""

from __future__ import annotations

from pathlib import Path

import pytest

from podium.config import check_config, load_config
from podium.config.schema import Config, ModelConfig
from podium.errors import ConfigError
from podium.models.load import load_tokenizer
from podium.models.value import load_value_model
from podium.single_controller import Role, shutdown_ray
from podium.tracking import read_metrics
from podium.trainer.main_ppo import make_pools, run_ppo


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judge")
    model = load_value_model(ModelConfig())
    model.value_head.weight.data.normal_()
    model.save(folder)
    load_tokenizer("builtin:tiny").save_pretrained(folder)
    return folder


def make(folder: Path, judge: Path, *words: str) -> Config:
    return load_config(
        None,
        [
            *("data.train_files=task:addition?rows=16", "data.val_files=task:addition?rows=8"),
            *("data.train_batch_size=4", "data.max_prompt_length=64", "data.max_response_length=8"),
            *("actor_rollout_ref.rollout.n=2", "actor_rollout_ref.rollout.kv_cache_gb=0.1"),
            *("trainer.total_training_steps=1", "trainer.val_before_train=false", "trainer.save_freq=0"),
            *("trainer.logger=[]", f"trainer.default_local_dir={folder}", "reward_model.rule_weight=0"),
            *("reward_model.enable=true", f"reward_model.model.path={judge}", *words),
        ],
    )


def test_it_gets_a_pool_beside_the_others(tmp_path: Path, judge: Path) -> None:
    config = make(tmp_path, judge, "reward_model.nnodes=1", "reward_model.n_gpus_per_node=2")
    assert config.trainer.runtime == "ray"
    pools = make_pools(config, "cpu")
    assert pools.resource_pool_spec == {"global_pool": [1], "reward_pool": [2]}
    assert pools.mapping[Role.RewardModel] == "reward_pool"
    config.trainer.runtime = "local"
    with pytest.raises(ConfigError, match=r"reward_model\.nnodes asks for a pool"):
        check_config(config)


@pytest.mark.soak
def test_it_scores_as_one_beside_the_policy(tmp_path: Path, judge: Path) -> None:
    scores = []
    try:
        for name, words in {"shared": [], "apart": ["reward_model.nnodes=1"]}.items():
            assert run_ppo(make(tmp_path / name, judge, *words)) == 0
            scores.append(
                [record["reward/rm_mean"] for record in read_metrics(tmp_path / name) if "reward/rm_mean" in record]
            )
    finally:
        shutdown_ray()
    assert len(scores[0]) == 1 and scores[1] == pytest.approx(scores[0], rel=1e-4)
