"""Updates that are left out because something is not finite: counted for every model, named, and not published."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from podium.config import load_config
from podium.engines.train.base import ModelOutputs
from podium.engines.train.culprits import Culprit, first_culprit
from podium.errors import TrainingError
from podium.tracking import read_events, read_metrics
from podium.trainer.main_ppo import run_ppo
from podium.workers.actor import Actor
from podium.workers.critic import CriticWorker

WORDS = [
    "data.train_files=task:addition?rows=16",
    "data.train_batch_size=4",
    "data.max_prompt_length=64",
    "data.max_response_length=4",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.kv_cache_gb=0.02",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "actor_rollout_ref.actor.entropy_coeff=0.01",
    "trainer.val_before_train=false",
    "trainer.save_freq=0",
    "trainer.logger=[]",
]
Train = Callable[..., Path]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    def run(*words: str) -> Path:
        folder = tmp_path / "run"
        assert run_ppo(load_config(None, [*WORDS, f"trainer.default_local_dir={folder}", *words])) == 0
        return folder

    return run


def spoil(monkeypatch: pytest.MonkeyPatch, owner: Any, at: Callable[[int], bool]) -> None:
    """The loss of the optimizer steps whose number (from 0) is chosen is not a number."""
    loss, calls = owner._loss, [0]

    def spoiled(self: Any, outputs: ModelOutputs, rows: Any) -> tuple[Tensor, Any]:
        value, metrics = loss(self, outputs, rows)
        calls[0] += 1
        return (value * float("nan") if at(calls[0] - 1) else value), metrics

    monkeypatch.setattr(owner, "_loss", spoiled)


@pytest.mark.parametrize("warmup", [0, 9])
def test_a_critic_that_never_learns_stops_the_run_also_while_it_warms_up(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warmup: int
) -> None:
    spoil(monkeypatch, CriticWorker, lambda number: True)
    words = ["algorithm.adv_estimator=gae", "trainer.total_training_steps=9", f"trainer.critic_warmup={warmup}"]
    with pytest.raises(TrainingError, match=r"3 steps in a row .* the loss of micro-batch 1 of 1 \(critic\)"):
        train(*words, "trainer.max_skipped_updates=2")
    steps = read_metrics(tmp_path / "run")
    assert [step["critic/skipped_updates"] for step in steps] == [1, 1, 1], "the last one is in the record too"
    told = [e for e in read_events(tmp_path / "run") if e["kind"] == "update_skipped"]
    assert [(e["step"], e["role"]) for e in told] == [(1, "critic"), (2, "critic"), (3, "critic")]
    assert told[0]["reason"] == "the loss of micro-batch 1 of 1 is not finite"


def test_weights_that_no_update_changed_keep_their_version_and_a_resumed_run_too(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, Actor, lambda number: number == 1)
    folder = train("trainer.total_training_steps=2", "trainer.save_freq=1")
    versions = {
        step: json.loads((folder / "checkpoints" / f"global_step_{step}" / "trainer.json").read_text())[
            "policy_version"
        ]
        for step in (1, 2)
    }
    assert versions == {1: 1, 2: 1}, "step 2 was left out"
    train("trainer.total_training_steps=4", "trainer.save_freq=1")
    steps = read_metrics(folder)
    assert [step["actor/skipped_updates"] for step in steps] == [0, 1, 0, 0]
    assert [step["training/staleness"] for step in steps] == [0, 0, 0, 0]
    state = json.loads((folder / "checkpoints" / "global_step_4" / "trainer.json").read_text())
    assert state["policy_version"] == 4


def test_a_step_of_which_a_part_was_left_out_is_published(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, Actor, lambda number: number == 0)
    words = ["trainer.total_training_steps=1", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.save_freq=1"]
    folder = train(*words)
    assert read_metrics(folder)[0]["actor/skipped_updates"] == 1
    state = json.loads((folder / "checkpoints" / "global_step_1" / "trainer.json").read_text())
    assert state["policy_version"] == 1


def test_a_loss_is_named_before_the_gradients_that_it_spoils() -> None:
    gradient, loss = Culprit(0, None, "the gradient of a"), Culprit(1, "the loss of micro-batch 1 of 2", None)
    assert first_culprit([gradient, loss]) == "the loss of micro-batch 1 of 2 on rank 1"
    assert first_culprit([gradient, Culprit(1, None, None)]) == "the gradient of a on rank 0"
    assert first_culprit([gradient]) == "the gradient of a"
    assert first_culprit([None, Culprit(1, None, None)]) == "a loss or gradient"
