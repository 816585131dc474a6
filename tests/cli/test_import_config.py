"""verl's configurations: keys in Podium's words, and a list of those that have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from podium.cli.import_config import read_script, read_yaml
from podium.cli.main import main
from podium.config import load_config

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


def test_scientific_numbers_and_none_are_read() -> None:
    assert read_yaml("a: {b: 1e-6, c: None, d: '${a.b}'}") == {"a.b": 1e-6, "a.c": None, "a.d": 1e-6}
    assert read_script("python x.py a.b=$HOME/x") == {"a.b": "~/x"}
    assert read_script("python x.py a.b=1e-6 a.c=null") == {"a.b": 1e-6, "a.c": None}


def test_a_file_without_settings_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.sh").write_text("echo hello\n")
    assert main(["import-config", str(tmp_path / "x.sh")]) == 2
    assert "has no settings" in " ".join(capsys.readouterr().err.split())


SEARCH_R1 = """\
export DATA_DIR='data/nq_search'
PYTHONUNBUFFERED=1 python3 -m verl.trainer.main_ppo \\
    data.train_files=$DATA_DIR/train.parquet data.train_batch_size=500 data.shuffle_train_dataloader=True \\
    algorithm.adv_estimator=grpo algorithm.no_think_rl=false \\
    actor_rollout_ref.actor.ppo_mini_batch_size=500 actor_rollout_ref.rollout.n_agent=5 \\
    +do_search=true max_turns=4 retriever.topk=3 2>&1 | tee x.log
"""


def imported(text: str, tmp_path: Path) -> Path:
    """The recipe made of a script."""
    (tmp_path / "run.sh").write_text(text)
    assert main(["import-config", str(tmp_path / "run.sh"), "--out", str(tmp_path / "mine.yaml")]) == 0
    return tmp_path / "mine.yaml"


def test_a_search_script_keeps_its_words_without_a_dot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config(imported(SEARCH_R1, tmp_path))
    assert config.do_search and config.max_turns == 4 and config.data.shuffle
    assert config.actor_rollout_ref.rollout.n == 5
    said = capsys.readouterr().err
    assert "9 of 10 settings translated" in said
    assert "algorithm.no_think_rl = False: what the model writes before a tag is always kept" in said
    assert "500 samples are 100 prompts" in said and config.actor_rollout_ref.actor.ppo_mini_batch_size == 100


def test_a_search_script_that_leaves_do_search_out_means_it(tmp_path: Path) -> None:
    config = load_config(imported(SEARCH_R1.replace("+do_search=true", ""), tmp_path))
    assert config.do_search and config.actor_rollout_ref.rollout.top_p == 0.95
    assert config.algorithm.use_kl_in_reward, "Search-R1 takes KL from the reward when it is not in the loss"


def test_a_shell_variable_of_a_settings_name_is_no_setting() -> None:
    assert read_script("max_turns=3\npython x.py a.b=${max_turns}") == {"a.b": 3}
    assert read_script("PORT=1 python x.py a.b=1 foo=2") == {"a.b": 1}


def test_what_only_a_shell_could_fill_in_is_to_be_repaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    imported(
        "x=$((1024 * 2))\nnow=$(date +%s)\n"
        "python m.py data.max_prompt_length=$x trainer.experiment_name=run-$now trainer.project_name=$WHO "
        "data.train_files=task:addition actor_rollout_ref.rollout.n=zwei",
        tmp_path,
    )
    said = capsys.readouterr().err
    assert "to repair: trainer.experiment_name = run-$(date +%s)" in said
    assert "to repair: trainer.project_name = $WHO" in said
    assert "max_prompt_length" not in said
    assert "to repair: actor_rollout_ref.rollout.n cannot be 'zwei'" in said, "the rest is checked all the same"


def test_hydra_references_are_filled_in() -> None:
    script = "python x.py data.max_prompt_length=7 a.b=\\${data.max_prompt_length} a.c='${x.y}'"
    assert read_script(script) == {"data.max_prompt_length": 7, "a.b": 7, "a.c": "${x.y}"}


def test_a_dapo_script_is_calculated(tmp_path: Path) -> None:
    config = load_config(
        imported(
            "prompt=$((1024 * 2))\nresponse=$((1024 * 8))\nsp=4\n"
            'ROOT=${ROOT:-"${HOME}/verl"}\nMODEL=${MODEL:-"${ROOT}/m"}\n'
            "longest=$(((prompt + response) / sp))\n"
            'ray job submit -- python3 -m recipe.dapo.main_dapo actor_rollout_ref.model.path="${MODEL}" \\\n'
            "  data.max_prompt_length=${prompt} data.max_response_length=$response data.truncation='left' \\\n"
            "  actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.rollout.n=16 \\\n"
            "  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$longest \\\n"
            "  actor_rollout_ref.actor.ulysses_sequence_parallel_size=$sp \\\n"
            "  +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True \\\n"
            "  +reward_model.reward_kwargs.overlong_buffer_cfg.len=$((response / 2)) trainer.total_epochs=1\n",
            tmp_path,
        )
    )
    actor = config.actor_rollout_ref.actor
    assert (config.data.max_prompt_length, config.data.max_response_length) == (2048, 8192)
    assert (actor.max_tokens_per_micro_batch, actor.fsdp.ulysses_sequence_parallel_size) == (2560, 4)
    assert config.actor_rollout_ref.model.path == str(Path("~/verl/m").expanduser())
    assert config.algorithm.overlong_buffer.enable and config.algorithm.overlong_buffer.len == 4096
