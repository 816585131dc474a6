"""A reward model learns to tell right answers from wrong ones, and stays what it was when saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from podium.cli.main import main
from podium.cli.sft import pairs_as_setting
from podium.config.schema import ModelConfig, OptimConfig
from podium.config.schema_sft import ResponseDataConfig, RewardTrainingConfig, load_reward_config
from podium.data.responses import PairRows
from podium.data.task_pairs import TaskPairSource
from podium.data.tasks import get_task
from podium.errors import DataError
from podium.models.load import load_tokenizer
from podium.models.value import load_value_model
from podium.tracking import read_metrics
from podium.trainer.supervised import REWARD, run_supervised
from podium.workers.engines import make_train_engine
from podium.workers.supervised import RewardTrainingWorker

TOKENIZER: Any = load_tokenizer("builtin:tiny")


def write_pairs(path: Path, *rows: dict[str, Any]) -> PairRows:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PairRows([str(path)], TOKENIZER, ResponseDataConfig(), "train")


@pytest.fixture
def evens(tmp_path: Path) -> Callable[..., RewardTrainingConfig]:
    """Pairs that differ in their first digit: even answers are preferred to odd ones."""
    for name, numbers in (("train", range(100, 612)), ("val", range(700, 764))):
        digits = [str(n) for n in numbers]
        rows = [
            {"prompt": f"{d}?", "chosen": f"{2 * (n % 5)}{d}", "rejected": f"{2 * (n % 4) + 1}{d}"}
            for n, d in enumerate(digits)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(*words: str, folder: str = "run") -> RewardTrainingConfig:
        small = [f"data.train_files={tmp_path / 'train.jsonl'}", f"data.val_files={tmp_path / 'val.jsonl'}"]
        small += ["data.train_batch_size=32", "optim.lr=1e-3", "trainer.total_training_steps=4", "trainer.logger=[]"]
        return load_reward_config(None, [*small, f"trainer.default_local_dir={tmp_path / folder}", *words])

    return make


def test_it_prefers_the_right_one_of_held_out_pairs(evens: Callable[..., RewardTrainingConfig]) -> None:
    config = evens("trainer.total_training_steps=16")
    assert run_supervised(config, REWARD) == 0
    steps = read_metrics(config.trainer.default_local_dir)
    assert steps[0]["val/rm/accuracy"] == 0.5, "the head starts at zero"
    assert steps[-1]["val/rm/accuracy"] > 0.9
    assert steps[-1]["val/rm/loss"] < 0.3 < steps[0]["val/rm/loss"]
    folder = Path(config.trainer.default_local_dir) / "checkpoints" / "global_step_16" / "hf"
    engine = make_train_engine("fsdp", load_value_model(ModelConfig(path=str(folder))), values_after=True)
    rows = PairRows(config.data.val_files, TOKENIZER, config.data, "val")
    scores = engine.scores(rows.fetch(range(len(rows)))).reshape(-1, 2)
    accuracy = float((scores[:, 0] > scores[:, 1]).float().mean())
    assert accuracy == pytest.approx(steps[-1]["val/rm/accuracy"]), "the saved model scores as the trained one"


def test_an_interrupted_run_ends_where_an_unbroken_one_does(evens: Callable[..., RewardTrainingConfig]) -> None:
    quick = ("data.train_batch_size=8", "trainer.val_before_train=false")
    whole, broken = evens(*quick), evens(*quick, "trainer.total_training_steps=2", folder="broken")
    assert run_supervised(whole, REWARD) == 0
    assert run_supervised(broken, REWARD) == 0
    broken.trainer.total_training_steps = 4
    assert run_supervised(broken, REWARD) == 0
    losses = [[s.get("rm/loss") for s in read_metrics(c.trainer.default_local_dir)] for c in (whole, broken)]
    assert losses[0] == losses[1]


def test_the_loss_is_bradley_terry_whatever_the_token_budget(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": str(n), "margin": 0.5 * (n % 2)} for n in range(6)]
    rows.append(rows[0] | {"rejected": "77"})  # a second pair of a prompt
    batch = write_pairs(tmp_path / "pairs.jsonl", *rows).fetch(range(7))
    torch.manual_seed(0)
    head = torch.randn(1, 128)
    found = []
    for budget in (4096, 20):  # the smaller one is less than a pair
        model = load_value_model(ModelConfig())
        model.value_head.weight.data.copy_(head)
        engine = make_train_engine(
            "fsdp", model, optim=OptimConfig(lr=0.0), max_tokens_per_micro_batch=budget, values_after=True
        )
        worker = RewardTrainingWorker(RewardTrainingConfig(), total_steps=1)
        worker.engine = engine
        scores = engine.scores(batch).reshape(-1, 2)
        margins = torch.tensor([float(row.get("margin", 0.0)) for row in rows])
        expected = -F.logsigmoid(scores[:, 0] - scores[:, 1] - margins).mean()
        metrics = worker.update(batch)
        assert metrics["rm/loss"].result() == pytest.approx(float(expected), rel=1e-4)
        found.append(metrics["rm/grad_norm"].result())
    assert found[0] == pytest.approx(found[1], rel=1e-3)


def test_every_pair_shape_gives_the_same_pair(tmp_path: Path) -> None:
    user = {"role": "user", "content": "1+2="}
    right, wrong = ({"role": "assistant", "content": text} for text in ("3", "4"))
    rows = write_pairs(
        tmp_path / "pairs.jsonl",
        {"prompt": "1+2=", "chosen": "3", "rejected": "4"},
        {"prompt": [user], "chosen": [right], "rejected": [wrong], "margin": None},
        {"chosen": [user, right], "rejected": [user, wrong]},
    )
    pairs = [rows.pair(number) for number in range(3)]
    assert pairs[0] is not None and pairs[1] == pairs[0] and pairs[2] == pairs[0]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "a", "chosen": "b"}, "no rejected"),
        ({"chosen": "b", "rejected": "c"}, "the row has no prompt"),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "margin": "wide"}, "could not convert"),
    ],
)
def test_a_bad_pair_is_named_with_its_reason(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=rf"pairs\.jsonl.*{reason}"):
        write_pairs(tmp_path / "pairs.jsonl", row).fetch([0])


@pytest.mark.parametrize("name", ["addition", "reverse", "countdown"])
def test_pairs_of_tasks_have_a_right_and_a_wrong_answer(name: str) -> None:
    source, task = TaskPairSource(f"task:{name}?rows=16", "train"), get_task(name)
    for number, row in enumerate(task.rows("train", 16)):
        pair, truth = source[number], row["reward_model"]["ground_truth"]
        scores = [task.score(pair[side], truth) for side in ("chosen", "rejected")]
        assert [s["score"] if isinstance(s, dict) else s for s in scores] == [1.0, 0.0]
    assert source[3] == TaskPairSource(f"task:{name}?rows=16", "train")[3]


def test_the_command_takes_files_of_pairs(tmp_path: Path) -> None:
    assert pairs_as_setting(["a.parquet", "optim.lr=1"]) == ["optim.lr=1", "data.train_files=['a.parquet']"]
    assert pairs_as_setting(["recipe.yaml", "task:addition?rows=8"])[0] == "recipe.yaml"
    words = ["task:addition?rows=16", "data.train_batch_size=8", "trainer.total_training_steps=1", "trainer.logger=[]"]
    words += ["trainer.val_before_train=false", f"trainer.default_local_dir={tmp_path / 'run'}"]
    assert main(["train-reward", *words]) == 0
    assert (tmp_path / "run" / "checkpoints" / "global_step_1" / "hf" / "model.safetensors").is_file()
