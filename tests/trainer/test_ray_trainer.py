from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from podium.config import load_config
from podium.config.schema import Config
from podium.errors import ConfigError, TrainingError
from podium.tracking import read_events, read_metrics, read_samples
from podium.trainer.main_ppo import build_trainer, run_ppo

Run = Callable[..., list[dict[str, Any]]]
ConfigMaker = Callable[..., Config]


def without_times(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What must be equal in two runs of the same thing."""
    clock = ("timing", "perf/", "publish/seconds")
    return [{k: v for k, v in step.items() if not k.startswith(clock)} for step in steps]


def test_a_run_leaves_a_complete_record(run: Run, tmp_path: Path) -> None:
    steps = run("trainer.val_before_train=true", "trainer.save_freq=-1")
    folder = tmp_path / "run"
    assert [step["step"] for step in steps] == [0, 1, 2]
    for name in ("actor/pg_loss", "actor/entropy", "critic/score/mean", "response_length/mean", "timing_s/step"):
        assert math.isfinite(steps[1][name]), name
    assert "val-core/addition/reward/mean@1" in steps[0] and "val/test_score/addition" in steps[2]
    samples = read_samples(folder / "rollouts", 1)
    assert len(samples) == 32 and samples[0]["policy_version"] == 0
    assert read_samples(folder / "rollouts", 2)[0]["policy_version"] == 1, "the second step samples the new weights"
    assert {"input", "output", "gts", "score", "uid", "stop_reason"} <= set(samples[0])
    assert len(samples[0]["tokens"]) == len(samples[0]["log_probs"]) == len(samples[0]["advantages"])
    assert "".join(samples[0]["tokens"]).startswith(samples[0]["output"])
    assert len(read_samples(folder / "validation", 2)) == 16
    assert [event["kind"] for event in read_events(folder)] == ["started", "checkpoint_saved", "finished"]
    hf = folder / "checkpoints" / "global_step_2" / "hf"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(hf), AutoTokenizer.from_pretrained(hf)
    assert model.config.vocab_size >= len(tokenizer)
    assert load_config(folder / "config.yaml").data.train_batch_size == 8


def test_the_saved_config_reproduces_the_run(run: Run, tmp_path: Path) -> None:
    first = run()
    again = load_config(tmp_path / "run" / "config.yaml", [f"trainer.default_local_dir={tmp_path / 'again'}"])
    run_ppo(again)
    assert without_times(read_metrics(tmp_path / "again")) == without_times(first)


@pytest.mark.parametrize("words", [[], ["algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=true"]])
def test_a_resumed_run_writes_the_metrics_of_an_unbroken_one(run: Run, tmp_path: Path, words: list[str]) -> None:
    words = [*words, "algorithm.kl_ctrl.type=adaptive", "trainer.test_freq=2", "data.train_files=task:addition?rows=24"]
    unbroken = run(*words, "trainer.total_training_steps=5", folder="unbroken")
    run(*words, "trainer.total_training_steps=2", "trainer.save_freq=2")
    resumed = run(*words, "trainer.total_training_steps=5")
    assert without_times(resumed) == without_times(unbroken)
    assert [event["kind"] for event in read_events(tmp_path / "run")].count("resumed") == 1


def test_resume_mode_must_needs_a_checkpoint(run: Run) -> None:
    with pytest.raises(Exception, match="no checkpoint"):
        run("trainer.resume_mode=must")


def test_ppo_trains_the_critic_alone_during_its_warm_up(run: Run, tmp_path: Path) -> None:
    steps = run("algorithm.adv_estimator=gae", "trainer.critic_warmup=1", "trainer.save_freq=1")
    assert "actor/pg_loss" not in steps[0] and "actor/pg_loss" in steps[1]
    assert all("critic/vf_loss" in step and "critic/values/mean" in step for step in steps)
    base = load_file("podium/models/tiny/model.safetensors")
    after_one, after_two = (
        load_file(tmp_path / f"run/checkpoints/global_step_{n}/hf/model.safetensors") for n in (1, 2)
    )
    assert all(torch.equal(after_one[name], base[name].float()) for name in base)
    assert any(not torch.equal(after_two[name], after_one[name]) for name in base)


def test_several_epochs_and_mini_batches_take_that_many_optimizer_steps(small_config: ConfigMaker) -> None:
    config = small_config(
        "actor_rollout_ref.actor.ppo_epochs=2", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "trainer.save_freq=0"
    )
    trainer = build_trainer(config)
    try:
        trainer.init_workers()
        trainer.fit()
        assert trainer.actor_rollout_wg.worker.train_engine.step_count == 2 * 2 * 2
    finally:
        trainer.shutdown()


@pytest.mark.parametrize("mode", ["reward", "loss"])
def test_kl_to_the_reference_in_the_reward_and_in_the_loss(run: Run, mode: str) -> None:
    word = "algorithm.use_kl_in_reward=true" if mode == "reward" else "actor_rollout_ref.actor.use_kl_loss=true"
    steps = run(word, "actor_rollout_ref.actor.optim.lr=1e-3", "trainer.total_training_steps=3")
    name = "actor/reward_kl_penalty" if mode == "reward" else "actor/kl_loss"
    assert steps[0][name] == pytest.approx(0, abs=1e-6), "the policy starts at its reference"
    assert abs(steps[2][name]) > 1e-6


def test_reference_quality_is_blended_by_its_schedule(run: Run) -> None:
    quality = "algorithm.ref_quality_score"
    steps = run(f"{quality}.enable=true", f"{quality}.max_weight=0.5", f"{quality}.warmup_ratio=1.0")
    assert [step["ref_quality/weight"] for step in steps] == [0.25, 0.5]
    assert 0 < steps[0]["ref_quality/min"] <= steps[0]["ref_quality/mean"] <= steps[0]["ref_quality/max"] <= 1
    blended = 0.75 * steps[0]["critic/score/mean"] + 0.25 * steps[0]["ref_quality/mean"]
    assert steps[0]["critic/rewards/mean"] == pytest.approx(blended, abs=1e-5)


def test_representations_are_aligned_only_while_the_policy_is_uncertain(run: Run) -> None:
    align = "algorithm.repr_align"
    active = run(f"{align}.enable=true", f"{align}.ref_alignment.entropy_high_threshold=0.0")
    assert [step["repr_align/active"] for step in active] == [1, 1]
    assert -1 <= active[0]["repr_align/cos_mean"] <= 1 and active[0]["repr_align/skipped"] == 0
    quiet = run(f"{align}.enable=true", f"{align}.ref_alignment.entropy_high_threshold=100", folder="quiet")
    assert quiet[0]["repr_align/active"] == 0 and "repr_align/cos_mean" not in quiet[0]
    assert quiet[0]["critic/rewards/mean"] == quiet[0]["critic/score/mean"]


def test_dynamic_sampling_refills_until_the_step_has_its_prompts(run: Run) -> None:
    steps = run("algorithm.filter_groups.enable=true", "data.train_files=task:addition?rows=400")
    assert all(step["critic/zero_std_groups"] == 0 for step in steps)
    assert max(step["training/num_gen_batches"] for step in steps) > 1


def test_rollout_correction_weights_the_loss(run: Run) -> None:
    steps = run("algorithm.rollout_correction.mode=token")
    assert steps[0]["rollout_corr/prob_diff"] < 1e-4 and steps[0]["rollout_corr/ess"] == pytest.approx(1, abs=1e-3)


def test_the_gap_between_sampler_and_trainer_is_measured_every_step(run: Run) -> None:
    assert all(step["rollout_corr/prob_diff"] < 1e-4 for step in run())


def test_a_users_own_estimator_and_loss_need_no_change_of_podium(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from podium.algorithms import finish_policy_loss, fold_rewards\n"
        "def advantage(token_level_rewards, response_mask):\n"
        "    total = token_level_rewards.sum(-1, keepdim=True) * response_mask\n"
        "    return total, total\n"
        "def loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, l_max=None):\n"
        "    losses = -advantages * log_prob\n"
        "    return finish_policy_loss(losses, response_mask, loss_agg_mode, l_max, log_prob - old_log_prob)\n"
    )
    steps = run(
        f"algorithm.adv_estimator={file}:advantage", f"actor_rollout_ref.actor.policy_loss.loss_mode={file}:loss"
    )
    assert steps[0]["critic/advantages/mean"] >= 0 and math.isfinite(steps[1]["actor/pg_loss"])


def test_a_users_own_reward_function_is_used(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return {'score': float(len(solution_str)), 'acc': solution_str == ground_truth}\n"
    )
    steps = run(f"reward.custom_reward_function={file}:compute_score", "trainer.test_freq=1")
    assert steps[0]["critic/score/mean"] > 1
    assert "val-core/addition/acc/mean@1" in steps[0] and "val-aux/addition/reward/mean@1" in steps[0]


def test_a_constant_reward_changes_nothing_and_is_counted(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 0.3\n")
    steps = run(f"reward.custom_reward_function={file}:compute_score")
    assert steps[0]["critic/zero_std_groups"] == 8
    assert steps[0]["critic/advantages/max"] == steps[0]["critic/advantages/min"] == 0
    assert steps[0]["actor/grad_norm"] == 0


def test_a_non_finite_loss_is_skipped_and_stops_the_run_when_it_goes_on(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):\n"
        "    return log_prob.sum() * float('nan'), {}\n"
    )
    words = [f"actor_rollout_ref.actor.policy_loss.loss_mode={file}:loss", "trainer.total_training_steps=4"]
    with pytest.raises(TrainingError, match="3 steps in a row"):
        run(*words, "trainer.max_skipped_updates=2")


def test_a_data_source_nobody_can_score_is_an_error_at_the_start(run: Run, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"prompt": "1+1=", "answer": "2", "data_source": "mystery"}\n' * 8)
    with pytest.raises(ConfigError, match=r"mystery.*custom_reward_function"):
        run(f"data.train_files={tmp_path / 'd.jsonl'}")


def test_several_validation_samples_give_best_and_worst(run: Run) -> None:
    val = "actor_rollout_ref.rollout.val_kwargs"
    steps = run(f"{val}.n=3", f"{val}.do_sample=true", "trainer.test_freq=2")
    assert steps[1]["val-core/addition/reward/best@3"] >= steps[1]["val-core/addition/reward/worst@3"]


def test_the_plain_transformers_engine_gives_a_run_too(run: Run) -> None:
    steps = run("actor_rollout_ref.rollout.name=hf", "trainer.total_training_steps=1")
    assert steps[0]["rollout_corr/prob_diff"] < 1e-4
