"""verl's keys: each becomes a setting, or is left out with a reason; nothing is dropped without a word."""

from __future__ import annotations

from typing import get_args

import pytest

from podium.config import check_config, load_config
from podium.config.names import leaves
from podium.config.verl_keys import RULES, translate, with_defaults
from podium.errors import ConfigError

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    "given, settings",
    [({f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4}, {f"{ACTOR}.micro_batch_size_per_gpu": 4}),
     ({"data.truncation": "left"}, {"data.overlong_prompts": "truncate_left"}),
     ({"data.filter_overlong_prompts": True, "data.truncation": "left"}, {"data.overlong_prompts": "drop"}),
     ({"data.filter_overlong_prompts": True, "data.truncation": "right"}, {"data.overlong_prompts": "drop"}),
     ({"trainer.val_freq": 3}, {"trainer.test_freq": 3}),
     ({"trainer.rollout_data_dir": None}, {}),
     ({f"{ROLLOUT}.n_agent": 5}, {f"{ROLLOUT}.n": 5}),
     ({f"{ROLLOUT}.n_agent": 5, f"{ROLLOUT}.n": 1}, {f"{ROLLOUT}.n": 5}),
     ({"data.shuffle_train_dataloader": False}, {"data.shuffle": False}),
     ({f"{ACTOR}.strategy": "fsdp2"}, {f"{ACTOR}.strategy": "fsdp"}),
     ({f"{ACTOR}.strategy": "megatron", f"{ACTOR}.megatron.tensor_model_parallel_size": 2},
      {f"{ACTOR}.strategy": "megatron", f"{ACTOR}.megatron.tensor_model_parallel_size": 2}),
     ({f"{ACTOR}.ppo_micro_batch_size": 128, "trainer.n_gpus_per_node": 8},
      {f"{ACTOR}.micro_batch_size_per_gpu": 16, "trainer.n_gpus_per_node": 8}),
     ({f"{ACTOR}.ulysses_sequence_parallel_size": 2}, {f"{ACTOR}.fsdp.ulysses_sequence_parallel_size": 2}),
     ({f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 9},
      {f"{ACTOR}.max_tokens_per_micro_batch": 9}),
     ({"custom_reward_function.path": "r.py", "custom_reward_function.name": "f"},
      {"reward.custom_reward_function": "r.py:f"}),
     ({"custom_reward_function.reward_kwargs.alpha": 0.5}, {"reward.kwargs.alpha": 0.5}),
     ({"data.apply_chat_template_kwargs.enable_thinking": False},
      {"data.apply_chat_template_kwargs.enable_thinking": False}),
     ({f"{ROLLOUT}.engine_kwargs.vllm.swap_space": 4}, {f"{ROLLOUT}.engine_kwargs.swap_space": 4}),
     ({"reward_model.overlong_buffer.len": 128}, {"algorithm.overlong_buffer.len": 128}),
     ({"reward_model.reward_kwargs.overlong_buffer_cfg.enable": True,
       "reward_model.reward_kwargs.overlong_buffer_cfg.len": 64,
       "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor": 0.5},
      {"algorithm.overlong_buffer.enable": True, "algorithm.overlong_buffer.len": 64,
       "algorithm.overlong_buffer.penalty_factor": 0.5})],
)  # fmt: skip
def test_keys_with_another_name_or_condition(given: dict[str, object], settings: dict[str, object]) -> None:
    translation = translate(given)
    assert translation.settings == settings and not translation.left


@pytest.mark.parametrize(
    "key, value, reason",
    [("data.truncation", "right", "only ever cut at its left end"),
     ("data.truncation", "middle", "only ever cut at its left end"),
     (f"{ACTOR}.optim.lr_warmup_steps_ratio", 0.1, "0.1 × training steps × 4"),
     (f"{ACTOR}.ppo_max_token_len_per_gpu", 9, "use_dynamic_bsz is off"),
     ("trainer.logger", ["vemlp_wandb"], "vemlp_wandb: not here; there is console, tensorboard, wandb"),
     ("trainer.resume_mode", "resume_path", "write trainer.resume_mode: <folder>"),
     ("data.image_key", "images", "the column is always images"),
     ("algorithm.no_think_rl", False, "always kept"),
     ("reward_model.reward_kwargs.max_resp_len", 9, "it is data.max_response_length"),
     ("reward_model.micro_batch_size_per_gpu", 9, "reward_model.max_tokens_per_micro_batch"),
     (f"{ACTOR}.megatron.pipeline_model_parallel_size", 2, "has tensor_model_parallel_size, "),
     ("actor_rollout_ref.ref.megatron.tensor_model_parallel_size", 2, "the reference is split as the actor is")],
)  # fmt: skip
def test_what_has_no_counterpart_is_left_out_with_the_reason(key: str, value: object, reason: str) -> None:
    assert reason in translate({key: value}).left[key]


def test_a_tracker_that_is_not_here_leaves_the_others() -> None:
    translation = translate({"trainer.logger": ["console", "vemlp_wandb"]})
    assert translation.settings == {"trainer.logger": ["console"]} and "trainer.logger" in translation.left


@pytest.mark.parametrize("value", [0.5, 3, "some words", True, ["x"], "resume_path", "right", "megatron"])
@pytest.mark.parametrize("key", RULES)
def test_no_rule_drops_a_value_without_a_word(key: str, value: object) -> None:
    translation = translate({key: value})
    assert translation.settings or key in translation.left


def test_an_engine_that_is_not_here_is_named_beside_those_that_are() -> None:
    engines = get_args(leaves()[f"{ACTOR}.strategy"])
    translation = translate({f"{ACTOR}.strategy": "veomni"})
    assert not translation.settings and all(name in translation.left[f"{ACTOR}.strategy"] for name in engines)
    with pytest.raises(ConfigError, match=f"cannot be 'veomni'; it must be one of {', '.join(engines)}"):
        load_config(None, [f"{ACTOR}.strategy=veomni"])
    with pytest.raises(ConfigError, match="verl's fsdp2 is fsdp here"):
        load_config(None, [f"{ACTOR}.strategy=fsdp2"])


@pytest.mark.parametrize(
    "given, steps",
    [({"lr_warmup_steps_ratio": 0.1}, 5 * 4 * 2), ({"lr_warmup_steps": 3}, 3 * 4 * 2),
     ({"lr_warmup_steps": 3, "lr_warmup_steps_ratio": 0.1}, 3 * 4 * 2),
     ({"lr_warmup_steps": -1, "lr_warmup_steps_ratio": 0.1}, 5 * 4 * 2)],
)  # fmt: skip
def test_warmup_counts_optimizer_steps(given: dict[str, float], steps: int) -> None:
    """verl's schedule moves once per training step; 512 prompts in mini-batches of 128, twice, are 8 updates."""
    values = {"data.train_batch_size": 512, f"{ACTOR}.ppo_mini_batch_size": 128, f"{ACTOR}.ppo_epochs": 2}
    values |= {"trainer.total_training_steps": 50, f"{ROLLOUT}.n": 8}
    translation = translate(values | {f"{ACTOR}.optim.{name}": value for name, value in given.items()})
    assert translation.settings[f"{ACTOR}.optim.lr_warmup_steps"] == steps
    assert any("counts optimizer steps" in note for note in translation.notes)


def test_the_critics_warmup_counts_the_critics_updates() -> None:
    values = {"data.train_batch_size": 512, f"{ACTOR}.ppo_mini_batch_size": 128, "critic.ppo_epochs": 3}
    settings = translate(values | {"critic.optim.lr_warmup_steps": 5}).settings
    assert settings["critic.optim.lr_warmup_steps"] == 5 * 4 * 3


def test_samples_of_search_r1_become_prompts_that_divide_the_batch() -> None:
    values = {"data.train_batch_size": 512, f"{ACTOR}.ppo_mini_batch_size": 256, f"{ROLLOUT}.n_agent": 5}
    translation = translate(values)
    assert translation.settings[f"{ACTOR}.ppo_mini_batch_size"] == 64
    assert "256 samples are 51.2 prompts, the nearest that divides a batch of 512 is 64" in translation.notes[0]


def test_a_reward_model_scores_alone_as_in_verl() -> None:
    assert with_defaults({"reward_model.enable": True})["reward_model.rule_weight"] == 0.0
    assert "reward_model.rule_weight" not in with_defaults({"reward_model.enable": False})


@pytest.mark.parametrize(
    "words, answer",
    [(["custom_reward_function.path=a.py", "custom_reward_function.name=f"],
      "here it is reward.custom_reward_function=a.py:f"),
     ([f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8"], "scoring uses the token budget"),
     ([f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"], f"here it is {ACTOR}.micro_batch_size_per_gpu=4"),
     ([f"{ACTOR}.use_dynamic_bsz=True"], f"here it is {ACTOR}.max_tokens_per_micro_batch=16384"),
     (["actor_rollout_ref.model.use_remove_padding=True"], "padding never reaches the model"),
     (["data.truncation=left"], "here it is data.overlong_prompts=truncate_left"),
     (["reward_model.reward_manager=dapo"], "found by looking at it"),
     (["+custom_reward_function.reward_kwargs.a=1"], "here it is reward.kwargs.a=1"),
     (["trainer.resume_mode=resume_path", "trainer.resume_from_path=/x"], "here it is trainer.resume_mode=/x"),
     ([f"{ACTOR}.optim.lr_warmup_steps_ratio=0.1", "trainer.total_training_steps=50", "data.train_batch_size=1024"],
      f"here it is {ACTOR}.optim.lr_warmup_steps=5")],
)  # fmt: skip
def test_a_key_of_verls_on_the_command_line_is_answered_in_podiums_words(words: list[str], answer: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, words)
    said = str(caught.value)
    assert answer in said and "did you mean" not in said
    assert "it is one of verl's" in said and said.count("podium import-config") == 1


@pytest.mark.parametrize(
    "word, meant",
    [("trainer.sede=1", "trainer.seed"), ("actor.strategy=fsdp", f"{ACTOR}.strategy"),
     ("mode=off", "algorithm.rollout_correction.mode"), ("+trainer.sede=1", "trainer.seed")],
)  # fmt: skip
def test_a_key_that_verl_does_not_know_either_gets_the_nearest_name(word: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {meant}") as caught:
        load_config(None, [word])
    assert "verl" not in str(caught.value)


def test_verls_resume_path_is_told_to_name_the_folder() -> None:
    with pytest.raises(ConfigError, match=r"write its folder: trainer\.resume_mode=<folder>"):
        check_config(load_config(None, ["trainer.resume_mode=resume_path"]))
