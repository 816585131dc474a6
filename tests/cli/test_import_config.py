"""verl's configurations: keys in Podium's words, and a list of those that have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from podium.cli.import_config import read_script, read_yaml
from podium.cli.main import main
from podium.cli.verl_keys import translate
from podium.config import load_config

ACTOR = "actor_rollout_ref.actor"
SCRIPT = """\
set -x
# a comment with a.b=c
train_files=/data/gsm8k/train.parquet
LR=${LR:-1e-6}
export N=5

python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files="$train_files" \\
    data.val_files="['/data/gsm8k/test.parquet','/data/math/test.parquet']" \\
    data.train_batch_size=1024 \\
    data.filter_overlong_prompts=True \\
    data.truncation='error' \\
    actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct \\
    actor_rollout_ref.model.use_remove_padding=True \\
    actor_rollout_ref.actor.optim.lr=$LR \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24000 \\
    actor_rollout_ref.actor.fsdp_config.param_offload=False \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.rollout.n=${N} \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 \\
    +actor_rollout_ref.rollout.frobnicate=1 \\
    custom_reward_function.path=reward.py \\
    trainer.logger='["console","wandb"]' \\
    trainer.val_before_train=False \\
    trainer.test_freq=5 "$@"
"""


def test_a_script_with_variables_becomes_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    assert main(["import-config", str(tmp_path / "run.sh"), "--out", str(tmp_path / "mine.yaml")]) == 0
    config = load_config(tmp_path / "mine.yaml")
    assert config.data.train_files == ["/data/gsm8k/train.parquet"]
    assert config.data.val_files == ["/data/gsm8k/test.parquet", "/data/math/test.parquet"]
    assert config.data.overlong_prompts == "drop"
    assert config.actor_rollout_ref.actor.optim.lr == 1e-6
    assert config.actor_rollout_ref.actor.max_tokens_per_micro_batch == 24000
    assert config.actor_rollout_ref.rollout.n == 5
    assert config.reward.custom_reward_function == f"{Path.cwd()}/reward.py:compute_score"
    assert config.trainer.logger == ["console", "wandb"] and config.trainer.test_freq == 5
    assert config.trainer.total_epochs == 30 and config.trainer.n_gpus_per_node == 8, "verl's defaults are written out"
    said = capsys.readouterr().err
    assert "use_remove_padding = True: padding never reaches the model" in said
    assert "log_prob_micro_batch_size_per_gpu = 16: scoring uses the token budget" in said
    assert "rollout.frobnicate = 1: unknown here" in said
    assert "to repair: data.train_files: there is no file /data/gsm8k/train.parquet" in said


def test_a_yaml_file_becomes_a_recipe_on_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "verl.yaml").write_text(
        "defaults: [_self_]\n"
        "data: {train_files: a.parquet, train_max_samples: -1}\n"
        "critic: {optim: {lr: 1e-5, lr_warmup_steps: -1}, model: {path: m, fsdp_config: {fsdp_size: -1}}}\n"
        "trainer: {resume_mode: resume_path, resume_from_path: /ckpt, max_actor_ckpt_to_keep: 3}\n"
    )
    assert main(["import-config", str(tmp_path / "verl.yaml")]) == 0
    recipe = capsys.readouterr().out
    (tmp_path / "mine.yaml").write_text(recipe)
    config = load_config(tmp_path / "mine.yaml")
    assert config.critic.optim.lr == 1e-5 and config.critic.optim.lr_warmup_steps == 0
    assert config.trainer.resume_mode == "/ckpt" and config.trainer.max_ckpt_to_keep == 3
    assert config.data.train_data_num is None and config.algorithm.adv_estimator == "gae"


@pytest.mark.parametrize(
    "given, settings",
    [({f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4}, {f"{ACTOR}.micro_batch_size_per_gpu": 4}),
     ({"actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 9}, {}),
     ({"data.truncation": "left"}, {"data.overlong_prompts": "truncate_left"}),
     ({"actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": 0.1, "trainer.total_training_steps": 50},
      {"actor_rollout_ref.actor.optim.lr_warmup_steps": 5, "trainer.total_training_steps": 50}),
     ({"trainer.val_freq": 3}, {"trainer.test_freq": 3}),
     ({"trainer.rollout_data_dir": None}, {}),
     ({f"{ACTOR}.strategy": "fsdp2"}, {f"{ACTOR}.strategy": "fsdp"}),
     ({f"{ACTOR}.ppo_micro_batch_size": 128, "trainer.n_gpus_per_node": 8},
      {f"{ACTOR}.micro_batch_size_per_gpu": 16, "trainer.n_gpus_per_node": 8}),
     ({"reward_model.overlong_buffer.len": 128}, {"algorithm.overlong_buffer.len": 128})],
)  # fmt: skip
def test_keys_with_another_name_or_condition(given: dict[str, object], settings: dict[str, object]) -> None:
    translation = translate(given)
    assert translation.settings == settings and not translation.left


def test_scientific_numbers_and_none_are_read() -> None:
    assert read_yaml("a: {b: 1e-6, c: None, d: '${a.b}'}") == {"a.b": 1e-6, "a.c": None, "a.d": 1e-6}
    assert read_script("python x.py a.b=$HOME/x") == {"a.b": "~/x"}
    assert read_script("python x.py a.b=1e-6 a.c=null") == {"a.b": 1e-6, "a.c": None}


def test_a_file_without_settings_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.sh").write_text("echo hello\n")
    assert main(["import-config", str(tmp_path / "x.sh")]) == 2
    assert "has no settings" in " ".join(capsys.readouterr().err.split())
