"""Whole runs on Ray under `strategy: megatron`, two workers with one model: the weights of one worker without it,
learning, and a run that is killed and goes on."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from strategy_runs import ACTOR, Run, check_that_a_killed_run_learns_as_an_unbroken_one, check_that_two_train_as_one

from podium.single_controller import shutdown_ray

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs podium[megatron]"),
    pytest.mark.timeout(3600),
]


@pytest.fixture(scope="module", autouse=True)
def ray_ends_with_the_module() -> Iterator[None]:
    yield
    shutdown_ray()


TOGETHER = [
    *("trainer.runtime=ray", "trainer.n_gpus_per_node=2", f"{ACTOR}.strategy=megatron"),
    *(f"{ACTOR}.megatron.tensor_model_parallel_size=2", "critic.megatron.tensor_model_parallel_size=2"),
]


@pytest.mark.parametrize(
    "words",
    [
        [f"{ACTOR}.ppo_mini_batch_size=3", "data.train_batch_size=9"],
        ["algorithm.adv_estimator=gae", f"{ACTOR}.use_kl_loss=true"],
    ],
    ids=["grpo, three mini-batches", "ppo with KL loss"],
)
def test_two_workers_train_the_same_parameters_as_one(run: Run, tmp_path: Path, words: list[str]) -> None:
    # AdamW makes a share of its rate (1e-4) of how tiny gradients are rounded
    check_that_two_train_as_one(run, tmp_path, words, TOGETHER, within=3e-5)


def test_a_run_learns_and_goes_on_after_a_kill_with_the_metrics_of_an_unbroken_one(tmp_path: Path) -> None:
    check_that_a_killed_run_learns_as_an_unbroken_one(tmp_path, TOGETHER)
