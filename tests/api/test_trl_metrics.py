"""TRL's metrics and callbacks' wishes in runs through the door."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

import podium
from podium.api.metrics import group_metrics, objective_metrics, renamed
from podium.config.schema import AlgorithmConfig
from podium.engines.rollout.base import StopReason
from podium.protocol import DataProto


def answer_length(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
    return [float(len(done[0]["content"])) for done in completions]


def test_the_kl_is_measured_by_the_estimator_of_the_penalty(
    policy: Any, other_reference: Any, tokenizer: Any, quick: dict[str, Any], sums: list[dict[str, Any]]
) -> None:
    seen = {}
    for estimator in ("k1", "k3"):
        args = podium.PPOConfig(
            response_length=5, num_ppo_epochs=2, kl_estimator=estimator, kl_coef=0.2, **quick | {"max_steps": 1}
        )
        with podium.PPOTrainer(args, tokenizer, policy, other_reference, answer_length, sums) as trainer:
            trainer.train()
            (seen[estimator],) = trainer.state.log_history
    for logs in seen.values():
        assert logs["objective/kl"] == pytest.approx(-logs["objective/non_score_reward"] / 0.2, rel=1e-5)
        assert logs["val/ratio_var"] > 0
    assert seen["k1"]["objective/kl"] != pytest.approx(seen["k3"]["objective/kl"], rel=1e-3)


def test_the_variance_of_the_ratio_is_that_over_tokens() -> None:
    ratio = torch.tensor([0.9, 1.0, 1.3], dtype=torch.float64)
    numbers = {"actor/ratio": float(ratio.mean()), "actor/ratio_deviation": float((ratio - 1).square().mean())}
    assert renamed(numbers, groups=False)["val/ratio_var"] == pytest.approx(float(ratio.var(unbiased=False)))


def test_a_kl_that_is_not_in_the_reward_takes_nothing_from_it() -> None:
    mask, zeros = torch.ones(1, 2), torch.zeros(1, 2)
    tensors = {"response_mask": mask, "responses": mask.long(), "token_level_scores": mask, "old_log_probs": -mask}
    batch = DataProto.from_dict(tensors=tensors | {"ref_log_prob": zeros})
    metrics = objective_metrics(batch, AlgorithmConfig(use_kl_in_reward=False), 0)
    assert metrics["objective/kl"] == -2.0
    assert metrics["objective/non_score_reward"] == 0.0 and metrics["objective/rlhf_reward"] == 2.0


def test_what_grpo_says_about_rewards_and_completions() -> None:
    lengths, scores = [2, 4, 3, 4], [1.0, 0.0, 2.0, 2.0]
    attention = torch.tensor([[1] + [1] * n + [0] * (4 - n) for n in lengths])
    tensors = {"responses": torch.zeros(4, 4, dtype=torch.long), "attention_mask": attention}
    tensors["token_level_scores"] = torch.tensor([[score, 0.0, 0.0, 0.0] for score in scores])
    reasons = [StopReason.EOS, StopReason.LENGTH, StopReason.EOS, StopReason.LENGTH]
    columns = {"stop_reason": [str(reason) for reason in reasons], "uid": ["a", "a", "b", "b"], "reward/f": scores}
    objects = {name: np.array(values, dtype=object) for name, values in columns.items()}
    metrics = group_metrics(DataProto.from_dict(tensors=tensors, non_tensors=objects), zero_std_groups=1.0)
    assert metrics == pytest.approx(
        {
            "reward": 1.25, "reward_std": float(np.std(scores, ddof=1)), "frac_reward_zero_std": 0.5,
            "completions/mean_length": 3.25, "completions/min_length": 2.0, "completions/max_length": 4.0,
            "completions/clipped_ratio": 0.5, "completions/mean_terminated_length": 2.5,
            "completions/min_terminated_length": 2.0, "completions/max_terminated_length": 3.0,
            "rewards/f/mean": 1.25, "rewards/f/std": float(np.std(scores, ddof=1)),
        }
    )  # fmt: skip


def test_grpo_reports_under_trls_names(tokenizer: Any, quick: dict[str, Any], sums: list[dict[str, Any]]) -> None:
    args = podium.GRPOConfig(
        num_generations=4, max_completion_length=5, beta=0.1, num_iterations=2, epsilon=1e-4, **quick
    )
    with podium.GRPOTrainer("builtin:tiny", answer_length, args, sums, processing_class=tokenizer) as trainer:
        trainer.train()
        logs = trainer.state.log_history[-1]
    names = "reward reward_std frac_reward_zero_std kl entropy clip_ratio/region_mean clip_ratio/low_mean "
    names += "clip_ratio/high_mean completions/mean_length completions/min_length completions/max_length "
    names += "completions/clipped_ratio learning_rate grad_norm epoch step"
    assert set(names.split()) <= set(logs)
    assert logs["reward"] == pytest.approx(logs["objective/scores"], abs=1e-6)
    assert logs["clip_ratio/low_mean"] > 0 and logs["clip_ratio/high_mean"] > 0
    assert logs["kl"] == pytest.approx(logs["actor/kl_loss"], rel=1e-4), "dapo's loss is a mean over tokens"


def test_a_callback_ends_the_epoch_and_the_run_is_shorter_by_what_was_left_out(
    tokenizer: Any, quick: dict[str, Any], sums: list[dict[str, Any]]
) -> None:
    prompts: list[set[str]] = []

    class OneStepOfTheFirstEpoch(TrainerCallback):
        def on_rollout_end(self, args: Any, state: Any, control: Any, samples: Any) -> None:
            prompts.append({sample.uid for sample in samples})

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_epoch_stop = state.global_step == 1

    # 16 rows, 4 prompts a step: an epoch is four steps.
    args = podium.GRPOConfig(
        num_generations=4, max_completion_length=3, num_train_epochs=2, **quick | {"max_steps": -1}
    )
    callbacks = [OneStepOfTheFirstEpoch]
    with podium.GRPOTrainer(
        "builtin:tiny", answer_length, args, sums[:16], callbacks=callbacks, processing_class=tokenizer
    ) as trainer:
        assert trainer.train().global_step == 1 + 4
        assert trainer.state.epoch == 2.0
    assert len(set().union(*prompts[1:])) == 16, "after the first step comes the whole second epoch"


def test_a_callback_asks_for_a_report_and_stops_the_run_from_an_evaluation(
    tokenizer: Any, quick: dict[str, Any], sums: list[dict[str, Any]]
) -> None:
    reported: list[int] = []

    class Tracker:
        def log(self, step: int, metrics: dict[str, float]) -> None:
            if "actor/pg_loss" in metrics:
                assert "response_length/mean" in metrics
                reported.append(step)

        def samples(self, step: int, samples: Any) -> None: ...
        def close(self) -> None: ...

    class Ask(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            assert door.trainer is not None
            door.trainer.recorder.trackers.append(Tracker())

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_log = state.global_step == 2

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == 3

    args = podium.GRPOConfig(
        num_generations=4, max_completion_length=3, logging_steps=50, eval_strategy="steps", eval_steps=3,
        **quick | {"max_steps": 9},
    )  # fmt: skip
    door = podium.GRPOTrainer("builtin:tiny", answer_length, args, sums, sums[:4], processing_class=tokenizer)
    door.add_callback(Ask())
    with door:
        assert door.train().global_step == 3
    assert reported == [2]
    assert [entry["step"] for entry in door.state.log_history if "eval_score" in entry] == [3], "not before the first"
