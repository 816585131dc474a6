"""Nulls and second names are settled once, from other settings, and settling twice changes nothing."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from podium.config import Config, load_config, resolve


def test_resolving_leaves_its_argument_alone_and_is_idempotent() -> None:
    config = Config()
    config.trainer.micro_batch_size, config.actor_rollout_ref.rollout.n = 4, 2
    before = copy.deepcopy(config)
    once = resolve(config)
    assert config == before
    assert once != before
    assert resolve(once) == once


def test_the_mini_batch_is_the_batch_unless_set() -> None:
    config = load_config(None, ["data.train_batch_size=48"])
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == config.critic.ppo_mini_batch_size == 48
    config = load_config(None, ["data.train_batch_size=48", "actor_rollout_ref.actor.ppo_mini_batch_size=12"])
    assert config.critic.ppo_mini_batch_size == 12


def test_the_critic_follows_the_actor_where_it_has_no_settings_of_its_own() -> None:
    words = ["actor_rollout_ref.model.path=some/model", "actor_rollout_ref.model.trust_remote_code=true"]
    words += ["actor_rollout_ref.actor.ppo_epochs=3", "actor_rollout_ref.actor.max_tokens_per_micro_batch=99"]
    config = load_config(None, words)
    assert (config.critic.model.path, config.critic.model.trust_remote_code) == ("some/model", True)
    assert (config.critic.ppo_epochs, config.critic.max_tokens_per_micro_batch) == (3, 99)
    assert config.actor_rollout_ref.ref.max_tokens_per_micro_batch == 99
    own = load_config(
        None, [*words, "critic.model.path=own", "critic.ppo_epochs=1", "critic.max_tokens_per_micro_batch=7"]
    )
    assert (own.critic.model.path, own.critic.model.trust_remote_code, own.critic.ppo_epochs) == ("own", False, 1)


def test_a_token_budget_of_the_critics_own_is_kept_when_the_actor_counts_rows() -> None:
    words = ["actor_rollout_ref.actor.micro_batch_size_per_gpu=8"]
    assert load_config(None, words).critic.micro_batch_size_per_gpu == 8
    assert load_config(None, [*words, "critic.max_tokens_per_micro_batch=512"]).critic.micro_batch_size_per_gpu is None


@pytest.mark.parametrize(("estimator", "enabled"), [("gae", True), ("grpo", False), ("rloo", False)])
def test_the_critic_is_on_when_the_estimator_needs_values(estimator: str, enabled: bool) -> None:
    assert load_config(None, [f"algorithm.adv_estimator={estimator}"]).critic.enable is enabled
    forced = load_config(None, [f"algorithm.adv_estimator={estimator}", f"critic.enable={not enabled}"])
    assert forced.critic.enable is not enabled


def test_clip_ratio_sets_both_sides_unless_one_has_its_own() -> None:
    actor = load_config(None, ["actor_rollout_ref.actor.clip_ratio=0.3", "actor_rollout_ref.actor.clip_ratio_high=0.4"])
    assert (actor.actor_rollout_ref.actor.clip_ratio_low, actor.actor_rollout_ref.actor.clip_ratio_high) == (0.3, 0.4)


def test_accumulation_words_become_the_actors_and_critics_keys() -> None:
    words = ["trainer.micro_batch_size=8", "trainer.gradient_accumulation_steps=4", "trainer.n_gpus_per_node=2"]
    config = load_config(None, [*words, "actor_rollout_ref.rollout.n=4"])
    actor = config.actor_rollout_ref.actor
    assert actor.ppo_mini_batch_size == 8 * 4 * 2 // 4
    assert actor.micro_batch_size_per_gpu == config.critic.micro_batch_size_per_gpu == 8
    assert config.trainer.micro_batch_size is config.trainer.gradient_accumulation_steps is None


@pytest.mark.parametrize(
    ("words", "runtime"), [([], "local"), (["trainer.nnodes=2"], "ray"), (["trainer.runtime=ray"], "ray")]
)
def test_the_runtime_is_local_for_one_worker_and_ray_for_more(words: list[str], runtime: str) -> None:
    assert load_config(None, words).trainer.runtime == runtime


def test_the_device_is_not_guessed_without_torch() -> None:
    assert load_config().trainer.device == "auto"


def test_the_run_folder_comes_from_project_and_experiment() -> None:
    trainer = load_config(None, ["trainer.project_name=p", "trainer.experiment_name=e"]).trainer
    assert trainer.default_local_dir == "runs/p/e"
    assert (trainer.rollout_data_dir, trainer.validation_data_dir) == ("runs/p/e/rollouts", "runs/p/e/validation")
    assert load_config(None, ["trainer.default_local_dir=x"]).trainer.validation_data_dir == "x/validation"


def test_validation_uses_the_training_tasks_but_never_the_training_files() -> None:
    config = load_config(None, ["data.train_files=[task:addition, a.parquet]"])
    assert config.data.val_files == ["task:addition"]
    assert load_config(None, ["data.train_files=a.parquet"]).data.val_files == []


def test_a_tilde_is_the_home_folder() -> None:
    config = load_config(None, ["data.train_files=~/a.parquet", "actor_rollout_ref.model.path=~/model"])
    assert config.data.train_files == [str(Path.home() / "a.parquet")]
    assert config.actor_rollout_ref.model.path == config.critic.model.path == str(Path.home() / "model")
