"""Supervised fine-tuning: the loss falls, the answers get better, and an interrupted run goes on exactly."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from podium.cli.main import main
from podium.config import load_config
from podium.config.schema_sft import ResponseDataConfig, SFTConfig, check_supervised, load_sft_config
from podium.data.responses import ExampleRows
from podium.data.tasks import get_task
from podium.errors import CheckpointError, ConfigError, DataError
from podium.models.load import load_tokenizer, resolve_path
from podium.tracking import read_metrics
from podium.trainer import supervised
from podium.trainer.main_ppo import run_ppo
from podium.trainer.supervised import SFT, run_supervised

TOKENIZER: Any = load_tokenizer("builtin:tiny")


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., SFTConfig]:
    def make(*words: str, folder: str = "run") -> SFTConfig:
        small = [
            *("data.train_files=task:addition?rows=1024", "data.val_files=task:addition?rows=64"),
            *("data.train_batch_size=32", "optim.lr=5e-4", "trainer.total_training_steps=4", "trainer.logger=[]"),
        ]
        return load_sft_config(None, [*small, f"trainer.default_local_dir={tmp_path / folder}", *words])

    return make


def greedy_accuracy(model: Path | str, folder: Path) -> float:
    """By the rule, on held-out sums."""
    words = [f"actor_rollout_ref.model.path={model}", f"trainer.default_local_dir={folder}", "trainer.val_only=true"]
    words += ["data.train_files=task:addition?rows=64", "data.val_files=task:addition?rows=64", "trainer.logger=[]"]
    words += ["data.max_prompt_length=64", "data.max_response_length=8", "actor_rollout_ref.rollout.kv_cache_gb=0.1"]
    run_ppo(load_config(None, words))
    return float(read_metrics(folder)[0]["val/test_score/addition"])


def test_the_loss_falls_and_greedy_answers_get_better(config: Callable[..., SFTConfig], tmp_path: Path) -> None:
    run = config("trainer.total_training_steps=20", "trainer.test_freq=10")
    assert run_supervised(run, SFT) == 0
    steps = read_metrics(run.trainer.default_local_dir)
    losses = [step["val/sft/loss"] for step in steps if "val/sft/loss" in step]
    assert len(losses) == 3 and losses[0] > 2 * losses[1] > 2 * losses[2]
    assert all(step["perf/throughput"] > 0 for step in steps[1:])
    trained = Path(run.trainer.default_local_dir) / "checkpoints" / "global_step_20" / "hf"
    before, after = greedy_accuracy("builtin:tiny", tmp_path / "a"), greedy_accuracy(trained, tmp_path / "b")
    assert after > before + 0.3


def test_an_interrupted_run_ends_with_the_weights_of_an_unbroken_one(config: Callable[..., SFTConfig]) -> None:
    quick = ("trainer.save_freq=2", "data.train_batch_size=8", "trainer.val_before_train=false")
    whole, broken = config(*quick), config(*quick, folder="broken")
    assert run_supervised(whole, SFT) == 0
    broken.trainer.total_training_steps = 2
    assert run_supervised(broken, SFT) == 0
    broken.trainer.total_training_steps = 4
    assert run_supervised(broken, SFT) == 0
    files = [
        Path(c.trainer.default_local_dir) / "checkpoints/global_step_4/hf/model.safetensors" for c in (whole, broken)
    ]
    first, second = (load_file(file) for file in files)
    assert all(torch.equal(first[name], second[name]) for name in first)
    records = [read_metrics(c.trainer.default_local_dir) for c in (whole, broken)]
    assert [s.get("sft/loss") for s in records[0]] == [s.get("sft/loss") for s in records[1]]


def test_the_loss_does_not_depend_on_how_rows_are_cut(config: Callable[..., SFTConfig]) -> None:
    quick = ("data.train_batch_size=8", "trainer.total_training_steps=2", "trainer.save_freq=0")
    runs = [config(*quick, folder="a"), config(*quick, "max_tokens_per_micro_batch=64", folder="b")]
    assert [run_supervised(run, SFT) for run in runs] == [0, 0]
    first, second = ([s["sft/loss"] for s in read_metrics(r.trainer.default_local_dir)[1:]] for r in runs)
    assert first == pytest.approx(second, rel=1e-3)


def rows_of(tmp_path: Path, *rows: dict[str, Any], **settings: Any) -> ExampleRows:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ExampleRows([str(file)], TOKENIZER, ResponseDataConfig(**settings), "train")


def test_every_row_shape_gives_the_same_example(tmp_path: Path) -> None:
    user = [{"role": "user", "content": "1+2="}]
    assistant = [{"role": "assistant", "content": "3"}]
    rows = rows_of(
        tmp_path,
        {"prompt": "1+2=", "response": "3"},
        {"prompt": user, "completion": assistant},
        {"question": "1+2=", "answer": "3"},
        {"messages": user + assistant},
        {"prompt": user, "extra_info": {"answer": "3"}},
    )
    examples = [rows.example(number) for number in range(len(rows))]
    assert examples[0] is not None and all(example == examples[0] for example in examples)
    assert TOKENIZER.decode(examples[0].response) == "3" + TOKENIZER.eos_token


def test_built_in_tasks_give_answers_that_their_verifier_accepts() -> None:
    rows = ExampleRows(["task:reverse?rows=8"], TOKENIZER, ResponseDataConfig(), "train")
    task = get_task("reverse")
    for number, row in enumerate(task.rows("train", 8)):
        example = rows.example(number)
        assert example is not None
        text = TOKENIZER.decode(example.response, skip_special_tokens=True)
        assert task.score(text, row["reward_model"]["ground_truth"]) == 1.0


def test_overlong_rows_are_an_error_left_out_or_cut(tmp_path: Path) -> None:
    long = {"prompt": "1+2=", "response": "3" * 50}
    with pytest.raises(DataError, match=r"rows\.jsonl.*data\.max_length is 40"):
        rows_of(tmp_path, long, max_length=40).fetch([0])
    dropping = rows_of(tmp_path, long, {"prompt": "1+2=", "response": "3"}, max_length=40, overlong="drop")
    assert len(dropping.fetch([0, 1])) == 1 and dropping.dropped == {0}
    cut = rows_of(tmp_path, long, max_length=40, overlong="truncate_right").fetch([0])
    assert int(cut.tensors()["attention_mask"].sum()) == 40


def test_a_row_without_a_response_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl.*no response: none of response, completion, answer"):
        rows_of(tmp_path, {"prompt": "1+2="}).fetch([0])


def test_settings_of_reinforcement_are_refused(config: Callable[..., SFTConfig]) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.critic_warmup belongs to podium train"):
        check_supervised(config("trainer.critic_warmup=3"))
    with pytest.raises(ConfigError, match=r"did you mean optim\.lr\?"):
        load_sft_config(None, ["optim.lrr=1"])


def test_the_command_writes_a_recipe_of_itself(tmp_path: Path) -> None:
    words = ["data.train_files=task:addition?rows=32", "data.train_batch_size=8", "trainer.total_training_steps=1"]
    words += ["trainer.val_before_train=false", "trainer.logger=[]", f"trainer.default_local_dir={tmp_path / 'run'}"]
    assert main(["sft", *words]) == 0
    again = load_sft_config(tmp_path / "run" / "config.yaml")
    assert again == load_sft_config(None, words)


def test_a_stop_while_a_checkpoint_is_being_loaded_leaves_it_as_it_is(
    config: Callable[..., SFTConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = config()
    assert run_supervised(run, SFT) == 0
    file = Path(run.trainer.default_local_dir) / "checkpoints" / "global_step_4" / "hf" / "model.safetensors"
    before = load_file(file)

    def told_to_stop(*args: Any) -> Any:
        found = open_store(*args)
        signal.raise_signal(signal.SIGTERM)
        return found

    open_store = supervised.open_store
    monkeypatch.setattr(supervised, "open_store", told_to_stop)
    assert run_supervised(config("trainer.total_training_steps=8"), SFT) == 143
    after = load_file(file)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_checkpoint_of_a_deeper_model_is_refused(config: Callable[..., SFTConfig], tmp_path: Path) -> None:
    assert run_supervised(config(), SFT) == 0
    shallow = tmp_path / "shallow"
    shutil.copytree(resolve_path("builtin:tiny"), shallow)
    settings = json.loads((shallow / "config.json").read_text())
    settings["num_hidden_layers"] -= 1
    settings.pop("layer_types", None)
    (shallow / "config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match="does not fit this model"):
        run_supervised(config("trainer.total_training_steps=8", f"model.path={shallow}"), SFT)
