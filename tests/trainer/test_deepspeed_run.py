"""Whole runs on Ray under `strategy: deepspeed`: the weights of one worker without it, learning, and a run that is
killed and goes on."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from strategy_runs import ACTOR, Run, check_that_a_killed_run_learns_as_an_unbroken_one, check_that_two_train_as_one

from podium.single_controller import shutdown_ray

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs podium[deepspeed]"),
    pytest.mark.timeout(3600),
]


@pytest.fixture(scope="module", autouse=True)
def ray_ends_with_the_module() -> Iterator[None]:
    yield
    shutdown_ray()


def two_workers(stage: int) -> list[str]:
    words = ["trainer.runtime=ray", "trainer.n_gpus_per_node=2", f"{ACTOR}.strategy=deepspeed"]
    return [*words, f"{ACTOR}.deepspeed.zero_stage={stage}", f"critic.deepspeed.zero_stage={stage}"]


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (2, [f"{ACTOR}.ppo_mini_batch_size=3", "data.train_batch_size=9"]),
        (3, ["algorithm.adv_estimator=gae", f"{ACTOR}.use_kl_loss=true"]),
    ],
    ids=["ZeRO-2, grpo, three mini-batches", "ZeRO-3, ppo with KL loss"],
)
def test_two_workers_train_the_same_parameters_as_one(run: Run, tmp_path: Path, stage: int, words: list[str]) -> None:
    check_that_two_train_as_one(run, tmp_path, words, two_workers(stage), within=1e-5)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_run_learns_and_goes_on_after_a_kill_with_the_metrics_of_an_unbroken_one(stage: int, tmp_path: Path) -> None:
    check_that_a_killed_run_learns_as_an_unbroken_one(tmp_path, two_workers(stage))
