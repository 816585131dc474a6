"""The plan's arithmetic: prompts, samples, optimizer steps, tokens and totals."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from podium.config import Config, load_config, make_plan, resolve
from podium.config.plan import render

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def test_the_numbers_of_a_grpo_run() -> None:
    words = ["data.train_batch_size=32", f"{ROLLOUT}.n=8", "data.max_prompt_length=100", "data.max_response_length=28"]
    words += [f"{ACTOR}.ppo_mini_batch_size=8", f"{ACTOR}.ppo_epochs=2", "trainer.total_epochs=3", "trainer.nnodes=2"]
    plan = make_plan(load_config(None, words), 100)
    assert (plan.num_prompts, plan.num_samples, plan.num_workers) == (32, 256, 2)
    assert (plan.mini_batches_per_epoch, plan.optimizer_steps, plan.critic_optimizer_steps) == (4, 8, 0)
    assert (plan.max_sequence_tokens, plan.max_tokens) == (128, 32768)
    assert (plan.steps_per_epoch, plan.total_steps, plan.total_optimizer_steps) == (3, 9, 72)
    assert plan.roles == ("actor", "rollout")
    assert not plan.strictly_on_policy


def test_a_critic_has_steps_of_its_own_and_its_warm_up_costs_the_actor_steps() -> None:
    words = ["algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=true", "critic.ppo_mini_batch_size=16"]
    plan = make_plan(load_config(None, [*words, "trainer.critic_warmup=2", "trainer.total_training_steps=10"]), None)
    assert (plan.optimizer_steps, plan.critic_optimizer_steps) == (1, 4)
    assert (plan.total_optimizer_steps, plan.total_critic_optimizer_steps) == (8, 40)
    assert plan.roles == ("actor", "rollout", "reference", "critic")


def test_steps_override_epochs_and_unknown_rows_leave_totals_open() -> None:
    assert make_plan(load_config(None, ["trainer.total_training_steps=7"]), 10_000).total_steps == 7
    plan = make_plan(load_config(), None)
    assert plan.steps_per_epoch is plan.total_steps is plan.total_optimizer_steps is None


def test_train_data_num_limits_the_rows() -> None:
    assert make_plan(load_config(None, ["data.train_data_num=130"]), 10_000).steps_per_epoch == 2


@given(mini=st.integers(1, 12), count=st.integers(1, 12), n=st.integers(1, 5), epochs=st.integers(1, 3))
def test_every_sample_is_trained_on_once_per_epoch(mini: int, count: int, n: int, epochs: int) -> None:
    config = Config()
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    config.data.train_batch_size, actor.ppo_mini_batch_size, rollout.n, actor.ppo_epochs = mini * count, mini, n, epochs
    plan = make_plan(resolve(config), None)
    assert plan.optimizer_steps * plan.mini_batch_prompts * plan.samples_per_prompt == plan.num_samples * epochs
    assert plan.strictly_on_policy == (count * epochs == 1)


def test_the_plan_is_shown_with_its_arithmetic() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(render(make_plan(load_config(None, [f"{ROLLOUT}.n=8", "data.train_files='[a].parquet'"]), 640)))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "64 prompts × 8 samples" in text
    assert "524,288" in text
    assert "[a].parquet" in text
