"""Rollout workers in a pool of their own that die or fall silent: new ones take over, the training group stays."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fault_driver import TINY, without_clocks

from podium.config import load_config
from podium.single_controller import shutdown_ray
from podium.tracking import read_events, read_metrics
from podium.trainer import main_ppo, ray_trainer
from podium.trainer.main_ppo import run_ppo

POOL = [
    *TINY,
    "trainer.runtime=ray",
    "actor_rollout_ref.rollout.nnodes=1",
    "trainer.total_training_steps=5",
    "trainer.test_freq=4",
    "trainer.save_freq=-1",
]
"""Without a checkpoint in between: what goes on from one would begin at step 1."""


@pytest.fixture(scope="module", autouse=True)
def ray_ends_with_the_module() -> Iterator[None]:
    yield
    shutdown_ray()


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Those that runs have made so far."""
    made: list[Any] = []
    build = main_ppo.build_trainer

    def remember(config: Any) -> Any:
        made.append(build(config))
        return made[-1]

    monkeypatch.setattr(main_ppo, "build_trainer", remember)
    return made


@pytest.fixture
def strike(monkeypatch: pytest.MonkeyPatch, trainers: list[Any]) -> Callable[..., None]:
    """Plan a signal to the rollout worker within the nth run of a phase.

    It is stopped as the phase begins and gets the signal a little later, when its call is under way.
    """

    def plan(phase: str, nth: int, signum: int) -> None:
        entered = [0]
        before = ray_trainer.marked_timer

        @contextmanager
        def striking(name: str, timing: dict[str, float]) -> Iterator[None]:
            with before(name, timing):
                entered[0] += name == phase
                if name == phase and entered[0] == nth:
                    pid = trainers[-1].rollout_workers.placements[0].pid
                    os.kill(pid, signal.SIGSTOP)
                    threading.Timer(0.3, os.kill, [pid, signum]).start()
                yield

        monkeypatch.setattr(ray_trainer, "marked_timer", striking)

    return plan


def run(folder: Path, *words: str) -> list[dict[str, Any]]:
    assert run_ppo(load_config(None, [*POOL, f"trainer.default_local_dir={folder}", *words])) == 0
    return without_clocks(read_metrics(folder))


def failures(folder: Path) -> list[dict[str, Any]]:
    return [event for event in read_events(folder) if event["kind"] == "workers_failed"]


@pytest.mark.soak
def test_lost_rollout_workers_are_replaced_alone_and_the_metrics_are_the_golden_ones(
    tmp_path: Path, strike: Callable[..., None], trainers: list[Any]
) -> None:
    golden = run(tmp_path / "golden")
    strike("gen", 2, signal.SIGKILL)
    strike("update_weights", 2, signal.SIGKILL)
    strike("testing", 1, signal.SIGKILL)
    strike("gen", 5, signal.SIGSTOP)
    words = ["trainer.max_restarts=4", "trainer.phase_timeout_s.gen=15"]
    assert run(tmp_path / "run", *words) == golden
    events = failures(tmp_path / "run")
    assert {(e["role"], e["rank"], e["decision"]) for e in events} == {("RolloutWorker", 0, "restart_rollout_group")}
    said = ["generate_sequences(): its process is gone", "receive(): its process is gone"]
    said += [said[0], "did not finish generate_sequences() within 15 s"]
    assert [text in event["reason"] for text, event in zip(said, events, strict=True)] == [True] * 4
    assert len(trainers) == 2, "one for the golden run: the training group was never started anew"


@pytest.mark.soak
def test_samples_made_ahead_are_drawn_again_from_their_own_weights(
    tmp_path: Path, strike: Callable[..., None], trainers: list[Any]
) -> None:
    ahead = "trainer.max_staleness=1"
    golden = run(tmp_path / "golden", ahead)
    assert [step["training/staleness"] for step in golden] == [0, 1, 1, 1, 1]
    strike("update_weights", 2, signal.SIGKILL)
    strike("gen", 4, signal.SIGKILL)
    assert run(tmp_path / "run", ahead) == golden
    assert [event["decision"] for event in failures(tmp_path / "run")] == ["restart_rollout_group"] * 2
    assert len(trainers) == 2
