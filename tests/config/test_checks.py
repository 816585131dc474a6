"""Settings that do not fit together are refused before anything starts, all at once, each with its fix."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from podium.config import check_config, config_notes, load_config
from podium.config.names import leaves
from podium.config.ranges import _RULES, ESTIMATORS, GROUP_ESTIMATORS, KL_ESTIMATORS, POLICY_LOSSES
from podium.errors import ConfigError

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
GOOD = [f"{ROLLOUT}.n=4"]


def problems(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_config(load_config(None, [*GOOD, *words]))
    return str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["algorithm.adv_estimator=gae", f"{ROLLOUT}.n=1"],
        ["algorithm.adv_estimator=my.module:function", f"{ROLLOUT}.n=1"],
        [f"{ACTOR}.ppo_mini_batch_size=16", "critic.ppo_mini_batch_size=7"],  # no critic: its keys do not matter
        [f"{ACTOR}.kl_loss_type=k3+", f"{ACTOR}.use_kl_loss=true"],
        ["trainer.nnodes=2", "trainer.n_gpus_per_node=4", f"{ACTOR}.fsdp.fsdp_size=4"],
        [f"{ROLLOUT}.top_p=0.9", f"{ROLLOUT}.top_k=50"],
        ["data.train_files=s3://bucket/train.parquet"],
        [f"{ROLLOUT}.val_kwargs.do_sample=true", f"{ROLLOUT}.val_kwargs.n=8"],
        ["trainer.save_freq=0", "trainer.test_freq=10"],
    ],
)
def test_settings_that_fit_pass(words: list[str]) -> None:
    check_config(load_config(None, [*GOOD, *words]))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            [f"{ACTOR}.ppo_mini_batch_size=24"],
            "is not a multiple of actor_rollout_ref.actor.ppo_mini_batch_size = 24; 16",
        ),
        ([f"{ACTOR}.ppo_mini_batch_size=128"], "64 would fit"),
        (
            ["algorithm.adv_estimator=gae", "critic.ppo_mini_batch_size=7"],
            "critic.ppo_mini_batch_size = 7; 4 would fit",
        ),
        (["data.train_data_num=10"], "do not fill one batch"),
        ([f"{ROLLOUT}.n=1"], "a group of one has no advantage; set n to 2 or more"),
        (["algorithm.adv_estimator=gae", "critic.enable=false"], "gae needs values: set critic.enable=true"),
        (["trainer.critic_warmup=5"], "needs a critic"),
        (["algorithm.adv_estimator=gea"], "did you mean gae"),
        ([f"{ACTOR}.policy_loss.loss_mode=ppo2"], "known are vanilla, gspo"),
        (["algorithm.kl_penalty=k9"], "a trailing + takes k2's gradient"),
        ([f"{ACTOR}.clip_ratio=-0.1"], "clip_ratio_low = -0.1 must be above 0 and at most 1"),
        (["algorithm.gamma=1.01"], "algorithm.gamma = 1.01 must be between 0 and 1"),
        (["algorithm.lam=.nan"], "algorithm.lam = nan is not a finite number"),
        ([f"{ROLLOUT}.temperature=0"], "greedy samples are all alike"),
        ([f"{ROLLOUT}.top_p=0"], "top_p = 0.0 must be above 0 and at most 1"),
        ([f"{ROLLOUT}.top_k=0"], "top_k = 0 must be -1 (off) or at least 1"),
        (
            ["algorithm.rollout_correction.mode=token", f"{ROLLOUT}.top_p=0.9"],
            "set top_p=1 top_k=-1 min_p=0, or mode=off",
        ),
        (["algorithm.rollout_correction.reject_low=2", "algorithm.rollout_correction.reject_high=1"], "must be below"),
        (["algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.schedule=linear"], "set schedule=null"),
        (["algorithm.ref_quality_score.warmup_ratio=0"], "warmup_ratio = 0.0 must be above 0"),
        (["algorithm.overlong_buffer.enable=true", "algorithm.overlong_buffer.len=600"], "max_response_length = 512"),
        (["trainer.test_freq=0"], "test_freq = 0 must be -1 (only after the last step) or at least 1"),
        (["trainer.save_freq=-2"], "save_freq = -2 must be"),
        (["trainer.max_staleness=1"], "the local runtime supports only 0"),
        (["trainer.runtime=local", "trainer.n_gpus_per_node=2"], "set trainer.runtime=ray"),
        (["trainer.n_gpus_per_node=4", f"{ACTOR}.fsdp.fsdp_size=3"], "must be -1 or divide the 4 workers"),
        ([f"{ACTOR}.deepspeed.zero_stage=1"], "deepspeed.zero_stage = 1 must be 2 or 3"),
        ([f"{ACTOR}.deepspeed.zero_stage=2"], "deepspeed is for actor_rollout_ref.actor.strategy=deepspeed"),
        ([f"{ACTOR}.strategy=deepspeed", f"{ACTOR}.deepspeed.offload_optimizer=true"], "needs several workers"),
        (
            [f"{ACTOR}.strategy=deepspeed", "trainer.n_gpus_per_node=2", f"{ACTOR}.ulysses_sequence_parallel_size=2"],
            "fsdp.ulysses_sequence_parallel_size = 2 needs actor_rollout_ref.actor.strategy=fsdp, not deepspeed",
        ),
        ([f"{ACTOR}.megatron.tensor_model_parallel_size=0"], "tensor_model_parallel_size = 0 must be at least 1"),
        (
            ["trainer.n_gpus_per_node=2", f"{ACTOR}.megatron.tensor_model_parallel_size=2"],
            "megatron is for actor_rollout_ref.actor.strategy=megatron; strategy is fsdp",
        ),
        (
            [
                *("trainer.n_gpus_per_node=2", f"{ACTOR}.strategy=megatron"),
                f"{ACTOR}.megatron.tensor_model_parallel_size=4",
            ],
            "megatron.tensor_model_parallel_size = 4 must divide the 2 workers",
        ),
        (
            ["trainer.n_gpus_per_node=2", f"{ACTOR}.strategy=megatron", "actor_rollout_ref.model.lora_rank=8"],
            "lora_rank = 8 needs actor_rollout_ref.actor.strategy=fsdp or deepspeed, not megatron",
        ),
        (
            ["trainer.n_gpus_per_node=2", f"{ACTOR}.strategy=megatron", f"{ACTOR}.fsdp.fsdp_size=1"],
            "fsdp.fsdp_size = 1 needs actor_rollout_ref.actor.strategy=fsdp, not megatron",
        ),
        (["trainer.resume_mode=some/where"], "neither auto, must or disable nor a checkpoint folder"),
        (["trainer.gradient_accumulation_steps=4"], "needs trainer.micro_batch_size"),
        (["trainer.micro_batch_size=3", "trainer.gradient_accumulation_steps=1"], "is not a multiple of"),
        (["trainer.micro_batch_size=4", f"{ACTOR}.micro_batch_size_per_gpu=2"], "differ; set one of them"),
        (
            ["trainer.micro_batch_size=4", "trainer.gradient_accumulation_steps=8", f"{ACTOR}.ppo_mini_batch_size=16"],
            "makes mini-batches of 8 prompts",
        ),
        (["data.train_files=[]"], "data.train_files is empty"),
        (["data.train_files=gone.parquet"], "there is no file gone.parquet; built-in tasks are written task:<name>"),
        (["data.train_files='a.parquet,b.parquet'"], "several files are a list: [a,b]"),
        (["data.val_files=gone.jsonl"], "data.val_files: there is no file gone.jsonl"),
        (["actor_rollout_ref.model.path=/no/such/model"], "there is no such folder"),
        (["reward.custom_reward_function=gone.py:score"], "gone.py"),
        (["reward.custom_reward_function=score"], "must be path/to/file.py:function or module:function"),
        ([f"{ROLLOUT}.val_kwargs.n=4"], "greedy samples would be equal"),
        (["critic.optim.betas=[0.9]"], "betas = [0.9] must be two numbers"),
        (["trainer.experiment_name=''"], "trainer.experiment_name is empty"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_the_fix(words: list[str], says: str) -> None:
    assert says in problems(*words)


def test_every_problem_is_listed_in_one_error() -> None:
    text = problems("trainer.seed=-1", "algorithm.gamma=2", "data.train_files=gone.parquet", "data.max_prompt_length=0")
    assert text.startswith("4 settings do not fit:\n- ")
    assert all(key in text for key in ("trainer.seed", "algorithm.gamma", "gone.parquet", "data.max_prompt_length"))


@pytest.mark.parametrize("value", ["0", "-3"])
def test_sizes_of_zero_or_less_are_reported_and_break_no_other_check(value: str) -> None:
    sizes = [key for _, allowed, keys in _RULES for key in keys if allowed == "at least 1"]
    text = problems(*(f"{key}={value}" for key in sizes))
    assert all(f"{key} = {value}" in text for key in sizes if "threshold" not in key)


@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
def test_every_group_estimator_needs_a_group(estimator: str) -> None:
    assert "a group of one" in problems(f"algorithm.adv_estimator={estimator}", f"{ROLLOUT}.n=1")


def test_the_rules_speak_only_of_keys_that_exist() -> None:
    assert {key for _, _, keys in _RULES for key in keys} <= set(leaves())


def test_files_that_exist_pass(tmp_path: Path) -> None:
    train, reward = tmp_path / "train.parquet", tmp_path / "reward.py"
    train.touch()
    reward.touch()
    words = [
        f"data.train_files={train}",
        f"reward.custom_reward_function={reward}:score",
        f"trainer.resume_mode={tmp_path}",
    ]
    check_config(load_config(None, [*GOOD, *words]))


def test_what_is_odd_but_works_is_noted_and_not_refused() -> None:
    def notes(*words: str) -> str:
        config = load_config(None, [*GOOD, *words])
        check_config(config)
        return "\n".join(config_notes(config))

    assert notes() == ""
    assert "KL to the reference counts twice" in notes(f"{ACTOR}.use_kl_loss=true", "algorithm.use_kl_in_reward=true")
    assert "kl_ctrl has no effect" in notes("algorithm.kl_ctrl.type=adaptive")
    assert "clip_ratio has no effect" in notes(f"{ACTOR}.clip_ratio_low=0.1", f"{ACTOR}.clip_ratio_high=0.3")
    assert "grpo does not use its values" in notes("critic.enable=true")
    assert "a micro-batch of its own" in notes(f"{ACTOR}.max_tokens_per_micro_batch=1000")


def test_checking_needs_neither_torch_nor_ray() -> None:
    code = (
        "import sys; from podium.config import *; c = load_config(None, ['actor_rollout_ref.rollout.n=2']); "
        "check_config(c); make_plan(c, 100); sys.exit(any(m in sys.modules for m in ('torch', 'ray', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=600).returncode == 0


def test_the_known_names_are_those_the_algorithms_have() -> None:
    from podium.algorithms.advantages import AdvantageEstimator
    from podium.algorithms.kl import KL_PENALTIES
    from podium.algorithms.losses import policy_loss_names

    assert set(ESTIMATORS) == {str(estimator) for estimator in AdvantageEstimator}
    assert set(POLICY_LOSSES) == set(policy_loss_names())
    assert set(KL_ESTIMATORS) == set(KL_PENALTIES)
