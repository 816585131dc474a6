"""The Python door: trainers that train what they are given, through RayPPOTrainer, as a TRL script expects."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainerCallback

import podium
from podium.api.run import CallbackTrainer
from podium.config import load_config
from podium.errors import ConfigError, DataError, ModelError
from podium.trainer.ray_trainer import RayPPOTrainer
from tests.api.conftest import classifier


def right(prompts: list[Any], completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [float(done[0]["content"].strip() == right) for done, right in zip(completions, answer, strict=True)]


def same(first: Any, second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first.state_dict()[name], tensor) for name, tensor in second.items())


def copy_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_there_is_no_second_loop() -> None:
    assert issubclass(CallbackTrainer, RayPPOTrainer)
    assert "fit" not in vars(CallbackTrainer)


def test_grpo_trains_the_model_in_place_and_saves_it(
    policy: Any, tokenizer: Any, sums: list[dict[str, Any]], quick: dict[str, Any], tmp_path: Path
) -> None:
    before = copy_of(policy)
    args = podium.GRPOConfig(num_generations=4, max_completion_length=6, **quick)
    with podium.GRPOTrainer(policy, right, args, sums, processing_class=tokenizer) as trainer:
        done = trainer.train()
        trainer.save_model(str(tmp_path / "saved"))
    assert done.global_step == 2 and done.metrics["episode"] == 2 * 16
    assert not same(policy, before)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    assert same(saved, copy_of(policy))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "actor/pg_loss" in line] == [1, 2]
    assert load_config(tmp_path / "run" / "config.yaml").actor_rollout_ref.rollout.n == 4


def test_ppo_trains_policy_and_value_model_against_a_classifier(
    policy: Any, tokenizer: Any, quick: dict[str, Any], sums: list[dict[str, Any]]
) -> None:
    reference, value, reward = AutoModelForCausalLM.from_pretrained(policy.name_or_path), classifier(1), classifier(2)
    before = copy_of(policy), copy_of(value), copy_of(reward)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})  # as TRL's script does; the models have no such token
    rows = [{"input_ids": tokenizer(row["prompt"][0]["content"])["input_ids"]} for row in sums]
    args = podium.PPOConfig(response_length=5, stop_token="eos", num_mini_batches=2, num_ppo_epochs=2, **quick)
    trainer = podium.PPOTrainer(
        args, tokenizer, policy, reference, reward, train_dataset=rows, value_model=value, eval_dataset=rows[:8]
    )
    trainer.train()
    assert [not same(model, old) for model, old in zip((policy, value, reward), before, strict=True)] == [
        True, True, False,
    ]  # fmt: skip
    first = trainer.state.log_history[1]
    names = "objective/kl objective/entropy objective/non_score_reward objective/rlhf_reward objective/scores "
    names += "policy/approxkl_avg val/ratio policy/clipfrac_avg policy/entropy_avg loss/policy_avg loss/value_avg "
    names += "val/clipfrac_avg val/num_eos_tokens lr episode eps"
    assert set(names.split()) <= set(first)
    assert first["objective/kl"] == pytest.approx(0.0, abs=1e-4), "the reference is the policy at the start"
    assert first["objective/rlhf_reward"] == pytest.approx(
        first["objective/scores"] + first["objective/non_score_reward"], abs=1e-5
    )
    assert trainer.evaluate()["eval_samples"] == 8
    assert trainer.model.policy is policy
    trainer.close()


def test_another_reference_model_is_the_one_the_kl_is_measured_against(
    policy: Any, other_reference: Any, tokenizer: Any, quick: dict[str, Any], sums: list[dict[str, Any]]
) -> None:
    args = podium.PPOConfig(response_length=5, num_ppo_epochs=1, **quick | {"max_steps": 1})
    with podium.PPOTrainer(args, tokenizer, policy, other_reference, right, sums) as trainer:
        trainer.train()
        assert trainer.state.log_history[0]["objective/kl"] > 0.5


@pytest.mark.parametrize("stop, lengths", [(None, {5}), ("eos", {1, 2, 3, 4, 5})])
def test_without_a_stop_token_every_response_has_the_full_length(
    stop: str | None, lengths: set[int], tokenizer: Any, sums: list[dict[str, Any]], quick: dict[str, Any]
) -> None:
    seen: list[int] = []

    class Look:
        def on_rollout_end(self, args: Any, state: Any, control: Any, samples: Any) -> None:
            seen.extend(len(tokenizer(sample.output)["input_ids"]) for sample in samples)

        def on_step_end(self, args: Any, state: Any, control: Any, metrics: Any) -> None:
            trainer = door.trainer
            assert trainer is not None

    args = podium.PPOConfig(response_length=5, stop_token=stop, num_ppo_epochs=1, **quick | {"max_steps": 1})
    with podium.PPOTrainer(args, tokenizer, "builtin:tiny", None, right, sums, callbacks=[Look()]) as door:
        door.train()
        rollout = door.config.actor_rollout_ref.rollout
    assert rollout.ignore_eos is (stop is None)
    assert len(seen) == 16 and max(seen) <= 5


def test_callbacks_see_every_event_and_may_stop_the_run(
    tokenizer: Any, sums: list[dict[str, Any]], quick: dict[str, Any]
) -> None:
    events: list[str] = []

    class Stop(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            events.append("begin")

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **_: Any) -> None:
            events.append(f"evaluate {state.global_step}")

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            events.append(f"step {state.global_step}")
            control.should_training_stop = state.global_step == 2

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            events.append("save")

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            events.append("end")

    args = podium.GRPOConfig(
        num_generations=4, max_completion_length=5, **quick | {"max_steps": 50, "save_strategy": "steps"}
    )
    with podium.GRPOTrainer(
        "builtin:tiny", right, args, sums, sums[:4], callbacks=[Stop], processing_class=tokenizer
    ) as trainer:
        assert trainer.train().global_step == 2
    assert events == ["begin", "step 1", "step 2", "evaluate 2", "save", "end"]


def test_it_works_beside_a_running_event_loop_and_in_a_thread_of_its_own(
    sums: list[dict[str, Any]], quick: dict[str, Any]
) -> None:
    """A notebook has a running loop in its main thread; a thread may not set signal handlers."""

    async def cell() -> float:
        args = podium.GRPOConfig(num_generations=4, max_completion_length=5, **quick | {"max_steps": 1})
        with podium.GRPOTrainer("builtin:tiny", [right, lambda solution_str: 0.5], args, sums) as trainer:
            assert trainer.evaluate(sums[:8])["eval_score"] >= 0.5, "evaluation before any training"
            return trainer.train().metrics["objective/scores"]

    assert asyncio.run(cell()) >= 0.5
    scores: list[float] = []
    thread = threading.Thread(target=lambda: scores.append(asyncio.run(cell())))
    thread.start()
    thread.join(600)
    assert scores and scores[0] >= 0.5


def test_a_run_goes_on_from_its_checkpoint(sums: list[dict[str, Any]], quick: dict[str, Any]) -> None:
    quick |= {"save_strategy": "steps"}
    sizes = {"num_generations": 4, "max_completion_length": 5}
    with podium.GRPOTrainer("builtin:tiny", right, podium.GRPOConfig(**sizes, **quick), sums) as first:
        first.train()
        with pytest.raises(ConfigError, match="has trained"):
            first.train()
    longer = podium.GRPOConfig(**sizes, **quick | {"max_steps": 3})
    with podium.GRPOTrainer("builtin:tiny", right, longer, sums) as second:
        second.train(resume_from_checkpoint=True)
        assert [entry["step"] for entry in second.state.log_history] == [3]


def test_lora_trains_adapters_and_the_given_model_gets_the_merged_weights(
    policy: Any, tokenizer: Any, sums: list[dict[str, Any]], quick: dict[str, Any]
) -> None:
    peft = pytest.importorskip("peft")
    before = copy_of(policy)
    lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    args = podium.PPOConfig(response_length=5, num_ppo_epochs=1, **quick)
    with podium.PPOTrainer(args, tokenizer, policy, None, right, sums, peft_config=lora) as trainer:
        trainer.train()
        assert trainer.config.actor_rollout_ref.model.lora_rank == 4
        assert trainer.state.log_history[0]["objective/kl"] == pytest.approx(0.0, abs=1e-4)
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, policy.state_dict()[name])}
    assert changed and all("q_proj" in name or "v_proj" in name for name in changed)


MISTAKES: list[tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = [
    ({"learning_rat": 1e-5}, {}, ConfigError, "did you mean 'learning_rate'"),
    ({"num_mini_batches": 3}, {}, ConfigError, "num_mini_batches=3 does not divide"),
    ({"kl_estimator": "k2"}, {}, ConfigError, "Allowed: k1, k3"),
    ({"stop_token": "eos", "stop_token_id": 7}, {}, ConfigError, "both set"),
    ({"missing_eos_penalty": -1.0}, {}, ConfigError, "must be positive"),
    ({"push_to_hub": True}, {}, ConfigError, "huggingface_hub"),
    ({"report_to": "wandbb"}, {}, ConfigError, "did you mean 'wandb'"),
    ({}, {"train_dataset": [{"text": "x"}]}, DataError, r"train_dataset\[0\]: no prompt"),
    ({}, {"train_dataset": iter([])}, DataError, "IterableDataset"),
    ({}, {"train_dataset": {"train": [{"prompt": "x"}]}}, DataError, "give one dataset"),
    ({}, {"reward_model": None}, ConfigError, "there is no reward"),
    ({}, {"model": None}, ConfigError, "model is missing"),
    ({}, {"model": 3}, ModelError, "give a transformers model or the path of one"),
    ({}, {"data_collator": len}, ConfigError, "data_collator is not taken"),
    ({}, {"peft_config": object(), "ref_model": "builtin:tiny"}, ConfigError, "give ref_model=None"),
    ({"ref_adapter_name": "reference"}, {}, ConfigError, "trains one adapter"),
]


@pytest.mark.parametrize("arguments, parts, error, text", MISTAKES, ids=[case[3] for case in MISTAKES])
def test_a_mistake_is_said_before_anything_starts(
    arguments: dict[str, Any], parts: dict[str, Any], error: type[Exception], text: str,
    tokenizer: Any, sums: list[dict[str, Any]], quick: dict[str, Any],
) -> None:  # fmt: skip
    given = {"model": "builtin:tiny", "reward_model": right, "train_dataset": sums} | parts
    with pytest.raises(error, match=text):
        podium.PPOTrainer(podium.PPOConfig(**quick | arguments), tokenizer, **given).train()
