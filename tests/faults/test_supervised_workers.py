"""`podium sft` and `train-reward` whose workers are lost: new ones go on from the newest checkpoint or the start."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_driver import without_clocks

from podium.config.schema_sft import load_reward_config, load_sft_config
from podium.errors import ConfigError, WorkerDied
from podium.single_controller import shutdown_ray
from podium.tracking import read_events, read_metrics
from podium.trainer import supervised
from podium.trainer.supervised import REWARD, SFT, SupervisedTrainer, run_supervised

SMALL = [
    *("data.train_files=task:addition?rows=64", "data.val_files=task:addition?rows=8", "data.train_batch_size=8"),
    *("optim.lr=5e-4", "trainer.total_training_steps=5", "trainer.test_freq=2", "trainer.logger=[]"),
    "trainer.async_save=false",
]
JOBS: dict[str, Any] = {"sft": (SFT, load_sft_config), "rm": (REWARD, load_reward_config)}


@pytest.fixture(scope="module", autouse=True)
def ray_ends_with_the_module() -> Iterator[None]:
    yield
    shutdown_ray()


def run(name: str, folder: Path, *words: str) -> list[dict[str, Any]]:
    job, load = JOBS[name]
    assert run_supervised(load(None, [*SMALL, f"trainer.default_local_dir={folder}", *words]), job) == 0
    return without_clocks(read_metrics(folder))


@pytest.fixture
def at_update(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[SupervisedTrainer], None]], None]:
    """Plan what happens, once, as the workers get the batch of a step."""
    trainers: list[SupervisedTrainer] = []
    start, share = SupervisedTrainer.init_workers, supervised.share_out

    def remember(trainer: SupervisedTrainer) -> None:
        trainers.append(trainer)
        start(trainer)

    def plan(step: int, fault: Callable[[SupervisedTrainer], None]) -> None:
        due = [step]

        def sharing(batch: Any, ranks: int) -> Any:
            if trainers[-1].step in due:
                due.clear()
                fault(trainers[-1])
            return share(batch, ranks)

        monkeypatch.setattr(supervised, "share_out", sharing)

    monkeypatch.setattr(SupervisedTrainer, "init_workers", remember)
    return plan


def dies(trainer: SupervisedTrainer) -> None:
    raise WorkerDied("SFTWorker", 0, "update", "its process is gone")


@pytest.mark.parametrize(("save_freq", "resumed"), [(2, 2), (-1, -1)], ids=["from a checkpoint", "from the start"])
def test_a_run_that_lost_its_workers_writes_the_golden_metrics(
    tmp_path: Path, at_update: Callable[..., None], save_freq: int, resumed: int
) -> None:
    """`resume_mode=disable` is about what was there before this run."""
    words = [f"trainer.save_freq={save_freq}", "trainer.resume_mode=disable"]
    golden = run("sft", tmp_path / "golden", *words)
    at_update(3, dies)
    assert run("sft", tmp_path / "run", *words) == golden
    events = read_events(tmp_path / "run")
    assert [e["step"] for e in events if e["kind"] == "resumed"] == [resumed]
    (failed,) = (e for e in events if e["kind"] == "workers_failed")
    assert (failed["role"], failed["rank"], failed["decision"]) == ("SFTWorker", 0, "restart_group")


def test_a_run_without_restarts_left_ends(tmp_path: Path, at_update: Callable[..., None]) -> None:
    at_update(2, dies)
    with pytest.raises(WorkerDied):
        run("sft", tmp_path / "run", "trainer.max_restarts=0")
    assert read_events(tmp_path / "run")[-1]["decision"] == "raise"
    with pytest.raises(ConfigError, match="max_restarts = -1 must be at least 0"):
        run("sft", tmp_path / "none", "trainer.max_restarts=-1")


@pytest.mark.soak
def test_a_killed_worker_on_ray_is_replaced_and_the_run_goes_on_from_its_checkpoint(
    tmp_path: Path, at_update: Callable[..., None]
) -> None:
    def kill(trainer: SupervisedTrainer) -> None:
        """Stopped now, killed when its call is under way."""
        pid = trainer.workers.placements[1].pid
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.3, os.kill, [pid, signal.SIGKILL]).start()

    words = ["trainer.runtime=ray", "trainer.n_gpus_per_node=2", "trainer.save_freq=2"]
    at_update(3, kill)
    assert [step["step"] for step in run("rm", tmp_path / "run", *words)] == [0, 1, 2, 3, 4, 5]
    events = read_events(tmp_path / "run")
    (failed,) = (e for e in events if e["kind"] == "workers_failed")
    assert "rank 1, failed in update(): its process is gone" in failed["reason"]
    assert [e["step"] for e in events if e["kind"] == "resumed"] == [2]
