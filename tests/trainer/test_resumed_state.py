"""What a run remembers beside its weights: random states, the ids of trackers, how long it has taught nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from podium.checkpoint import rng
from podium.engines.train import flops
from podium.errors import TrainingError
from podium.tracking import read_metrics, trackers
from podium.trainer import ray_trainer
from podium.workers import actor_rollout_ref
from podium.workers.actor import Actor
from podium.workers.saving import load_rng, save_rng

Run = Callable[..., list[dict[str, Any]]]
CLOCKS = ("timing", "perf/", "publish/seconds", "val")
TWO, FOUR = ["trainer.total_training_steps=2", "trainer.save_freq=1"], ["trainer.total_training_steps=4"]
BY_CHANCE = """
import random
import numpy as np
import torch
from podium.algorithms import finish_policy_loss

def advantage(token_level_rewards, response_mask):
    chance = random.random() + np.random.rand() + torch.rand(len(response_mask), 1)
    return chance * response_mask, chance * response_mask

def loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, l_max=None):
    losses = -advantages * log_prob * (torch.rand(()) + random.random())
    return finish_policy_loss(losses, response_mask, loss_agg_mode, l_max, log_prob - old_log_prob)
"""


def steps_of(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without clocks, and without the validation that ends each of the runs."""
    return [{name: value for name, value in step.items() if not name.startswith(CLOCKS)} for step in metrics]


@pytest.mark.parametrize("who", ["driver", "rank"])
def test_what_is_drawn_by_chance_after_a_resume_is_what_the_unbroken_run_drew(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """In one process both the controller's and the worker's state are that of the process: each is tried alone."""
    words = by_chance(tmp_path)
    golden = steps_of(run(*words, *FOUR, folder="golden"))
    run(*words, *TWO)
    if who == "driver":
        monkeypatch.setattr(actor_rollout_ref, "load_rng", lambda folder, rank: None)
    else:
        without = SimpleNamespace(seed=rng.seed, capture=rng.capture, restore=lambda state: None)
        monkeypatch.setattr(ray_trainer, "rng", without)
    assert steps_of(run(*words, *FOUR)) == golden


def test_what_a_run_draws_by_chance_depends_on_its_seed_alone(run: Run, tmp_path: Path) -> None:
    words = by_chance(tmp_path)
    first = steps_of(run(*words, *TWO, folder="first"))
    rng.seed(99)  # whatever this process did before
    assert steps_of(run(*words, *TWO, folder="second")) == first


def by_chance(folder: Path) -> list[str]:
    (folder / "mine.py").write_text(BY_CHANCE)
    words = [f"algorithm.adv_estimator={folder}/mine.py:advantage"]
    return [*words, f"actor_rollout_ref.actor.policy_loss.loss_mode={folder}/mine.py:loss", "trainer.async_save=false"]


def test_measuring_the_machine_draws_nothing() -> None:
    """It is done once in a process, so after a resume again."""
    flops.reachable_flops.cache_clear()
    before = rng.capture()
    flops.reachable_flops(torch.device("cpu"))
    assert rng.capture() == before


def test_each_rank_gets_its_own_random_state_back(tmp_path: Path) -> None:
    drawn = {}
    for rank in (0, 1):
        rng.seed(rank)
        save_rng(tmp_path, rank)
        drawn[rank] = draw()
    rng.seed(9)
    for rank in (1, 0):
        load_rng(tmp_path, rank)
        assert draw() == drawn[rank]
    assert drawn[0] != drawn[1]
    before = rng.capture()
    load_rng(tmp_path, 2)
    assert rng.capture() == before, "a rank that the saved run did not have"


def draw() -> tuple[float, float, float, float]:
    return random.gauss(0.0, 1.0), float(np.random.randn()), float(np.random.rand()), float(torch.randn(()))


class Recording:
    """A tracker that gives each run an id of its own, unless it goes on with one."""

    made: list[Recording]

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.made.append(self)
        self.run_id = f"run {len(self.made)}"

    def resume(self, run_id: str) -> None:
        self.run_id = run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if "training/global_step" in metrics:  # not a validation
            self.steps.append(step)

    def close(self) -> None: ...


def test_trackers_go_on_under_the_id_they_had(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recording, "made", [], raising=False)
    monkeypatch.setitem(trackers._FACTORIES, "mlflow", lambda config: Recording())
    for words in (TWO, FOUR):
        run(*words, "trainer.logger=[mlflow]")
    assert [(tracker.run_id, tracker.steps) for tracker in Recording.made] == [("run 1", [1, 2]), ("run 1", [3, 4])]


def test_steps_that_taught_nothing_before_a_resume_count(run: Run, tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info):\n    return 1.0\n"
    )
    words = [f"reward.custom_reward_function={tmp_path}/reward.py:score", "trainer.max_flat_steps=3"]
    run(*words, *TWO)
    with pytest.raises(TrainingError, match="in 3 steps in a row"):
        run(*words, *FOUR)
    assert len(read_metrics(tmp_path / "run")) == 3


def test_updates_that_were_left_out_before_a_resume_count(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = Actor._loss

    def spoiled(self: Actor, outputs: Any, rows: Any) -> Any:
        value, metrics = loss(self, outputs, rows)
        return value * float("nan"), metrics

    monkeypatch.setattr(Actor, "_loss", spoiled)
    words = ["trainer.max_skipped_updates=2", "actor_rollout_ref.actor.entropy_coeff=0.01"]
    run(*words, *TWO)
    with pytest.raises(TrainingError, match="3 steps in a row"):
        run(*words, *FOUR)
    assert len(read_metrics(tmp_path / "run")) == 3
