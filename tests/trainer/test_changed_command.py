"""A command that was changed and goes on from a checkpoint says what is different, or that it cannot go on and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from podium.cli.main import main
from podium.config import load_config, save_config
from podium.config.schema import Config
from podium.errors import CheckpointError
from podium.models.load import load_tokenizer, resolve_path
from podium.tracking.jsonl import read_lines
from podium.trainer.changes import changed_settings
from podium.trainer.main_ppo import run_ppo
from podium.trainer.resumed_models import load_models

ConfigMaker = Callable[..., Config]
SAVED = ["trainer.save_freq=1", "trainer.total_training_steps=1"]


def events(folder: str, kind: str) -> Iterator[dict[str, Any]]:
    return (event for event in read_lines(Path(folder) / "events.jsonl") if event["kind"] == kind)


def test_what_changed_is_said_in_one_line_and_kept_as_an_event(small_config: ConfigMaker) -> None:
    assert run_ppo(small_config(*SAVED)) == 0
    config = small_config(
        *SAVED,
        "trainer.total_training_steps=2",
        "algorithm.adv_estimator=rloo",
        "actor_rollout_ref.actor.optim.lr=1e-5",
        "data.train_files=task:reverse?rows=64",
    )
    assert run_ppo(config) == 0
    (event,) = events(config.trainer.default_local_dir, "settings_changed")
    assert event["changes"] == {
        "data.train_files": "['task:addition?rows=64'] -> ['task:reverse?rows=64']",
        "actor_rollout_ref.actor.optim.lr": "0.0001 -> 1e-05",
        "algorithm.adv_estimator": "grpo -> rloo",
    }
    log = (Path(config.trainer.default_local_dir) / "console.log").read_text().splitlines()
    (line,) = [line for line in log if "algorithm.adv_estimator: grpo -> rloo" in line]
    assert "optim.lr: 0.0001 -> 1e-05" in line and "trainer.resume_mode=disable" in line


def test_the_same_command_and_a_longer_one_say_nothing(small_config: ConfigMaker) -> None:
    assert run_ppo(small_config(*SAVED)) == 0
    longer = [*SAVED, "trainer.total_training_steps=2", "actor_rollout_ref.actor.max_tokens_per_micro_batch=512"]
    assert run_ppo(small_config(*longer, "trainer.test_freq=1")) == 0
    assert not list(events(small_config().trainer.default_local_dir, "settings_changed"))


@pytest.mark.parametrize(
    ("word", "change"),
    [
        ("data.train_batch_size=4", {"data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"}),
        ("actor_rollout_ref.rollout.n=2", {"actor_rollout_ref.rollout.n"}),
        ("actor_rollout_ref.actor.optim.weight_decay=0", {"actor_rollout_ref.actor.optim.weight_decay"}),
        ("reward.functions={default: 1.0}", {"reward.functions"}),
        ("trainer.seed=3", {"trainer.seed"}),
        ("actor_rollout_ref.rollout.kv_cache_gb=0.2", set()),
        ("critic.optim.lr=1", set()),  # there is no critic
    ],
)
def test_what_counts_as_a_change(word: str, change: set[str], small_config: ConfigMaker, tmp_path: Path) -> None:
    save_config(small_config(), tmp_path / "run" / "config.yaml")
    found = changed_settings(tmp_path / "run" / "checkpoints" / "global_step_1", small_config(word))
    assert set(found) == change


def test_a_checkpoint_without_a_critic(small_config: ConfigMaker) -> None:
    assert run_ppo(small_config(*SAVED)) == 0
    with pytest.raises(CheckpointError, match="written without a critic") as caught:
        run_ppo(small_config(*SAVED, "algorithm.adv_estimator=gae", "trainer.total_training_steps=2"))
    assert "trainer.resume_mode=disable" in str(caught.value) and "adv_estimator=gae" in str(caught.value)


def save_smaller(folder: Path) -> Path:
    shape = AutoConfig.from_pretrained(resolve_path("builtin:tiny"))
    shape.num_hidden_layers, shape.hidden_size, shape.layer_types = 1, 64, shape.layer_types[:1]
    AutoModelForCausalLM.from_config(shape).save_pretrained(folder)
    load_tokenizer("builtin:tiny").save_pretrained(folder)
    return folder


def test_another_model_is_a_short_error(
    small_config: ConfigMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config(*SAVED, "algorithm.adv_estimator=gae")
    assert run_ppo(config) == 0
    other = save_smaller(tmp_path / "other")
    recipe = str(Path(config.trainer.default_local_dir) / "config.yaml")
    capsys.readouterr()
    words = ["trainer.total_training_steps=2", f"actor_rollout_ref.model.path={other}"]
    assert main(["train", recipe, *words]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "holds another model" in said and "num_hidden_layers 4 -> 1" in said and "resume_mode=disable" in said
    assert len(said) < 600
    with pytest.raises(CheckpointError, match=r"critic\.model\.path=.*other") as caught:
        run_ppo(load_config(recipe, [words[0], f"critic.model.path={other}"]))
    assert len(str(caught.value)) < 500
    with pytest.raises(CheckpointError, match="lora_rank=0, and 4 is set"):
        run_ppo(load_config(recipe, [words[0], "actor_rollout_ref.model.lora_rank=4"]))


def test_a_checkpoint_without_a_readable_model_config(small_config: ConfigMaker, tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        load_models(tmp_path, small_config(), None, None)
