"""Workers on Ray that die or fall silent: seen soon, replaced, and the record is that of an unbroken run."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fault_driver import LIMIT_S, PPO, TINY, Fault, finish, of_session, start, train, without_clocks

from podium.config import load_config
from podium.errors import WorkerDied, WorkerError, WorkerTimeout
from podium.single_controller import shutdown_ray
from podium.single_controller.supervise import Decision, Raise, RestartGroup
from podium.tracking import read_events, read_metrics
from podium.trainer import main_ppo, ray_trainer
from podium.trainer.main_ppo import run_ppo

ON_RAY = [*TINY, *PPO, "trainer.runtime=ray", "trainer.n_gpus_per_node=2", "trainer.total_training_steps=4"]


@pytest.fixture(scope="module", autouse=True)
def ray_ends_with_the_module() -> Iterator[None]:
    yield
    shutdown_ray()


@pytest.fixture
def strike(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Plan a signal to a rank within the nth run of a phase; returns when it was sent.

    The rank is stopped as the phase begins and gets the signal a little later, when its call is under way: a delay
    alone might outlast the phase and strike the next one.
    """
    trainers: list[Any] = []
    build, timer = main_ppo.build_trainer, ray_trainer.marked_timer

    def remember(config: Any) -> Any:
        trainers.append(build(config))
        return trainers[-1]

    def plan(phase: str, nth: int, rank: int, signum: int) -> list[float]:
        entered, sent = [0], []

        def send(pid: int) -> None:
            sent.append(time.time())
            os.kill(pid, signum)

        before = ray_trainer.marked_timer

        @contextmanager
        def striking(name: str, timing: dict[str, float]) -> Iterator[None]:
            with before(name, timing):
                entered[0] += name == phase
                if name == phase and entered[0] == nth:
                    pid = trainers[-1].workers.placements[rank].pid
                    os.kill(pid, signal.SIGSTOP)
                    threading.Timer(0.3, send, [pid]).start()
                yield

        monkeypatch.setattr(ray_trainer, "marked_timer", striking)
        return sent

    monkeypatch.setattr(main_ppo, "build_trainer", remember)
    assert timer is ray_trainer.marked_timer
    return plan


def run(folder: Path, *words: str) -> list[dict[str, Any]]:
    assert run_ppo(load_config(None, [*ON_RAY, f"trainer.default_local_dir={folder}", *words])) == 0
    return without_clocks(read_metrics(folder))


@pytest.mark.soak
def test_dead_and_silent_workers_are_replaced_and_the_metrics_are_the_golden_ones(
    tmp_path: Path, strike: Callable[..., list[float]]
) -> None:
    golden = run(tmp_path / "golden")
    killed = strike("update_actor", 2, rank=1, signum=signal.SIGKILL)
    stopped = strike("gen", 4, rank=0, signum=signal.SIGSTOP)
    words = ["trainer.phase_timeout_s.gen=30", "trainer.heartbeat_s=1", "trainer.async_save=false"]
    assert run(tmp_path / "run", *words) == golden
    events = read_events(tmp_path / "run")
    first, second = (event for event in events if event["kind"] == "workers_failed")
    assert killed and "rank 1" in first["reason"] and "process is gone" in first["reason"], "seen by its death"
    assert first["decision"] == second["decision"] == "restart_group"
    assert "did not finish generate_sequences() within 30 s" in second["reason"] and stopped
    assert [event["step"] for event in events if event["kind"] == "resumed"] == [1, 2], "the checkpoint before"


@pytest.mark.soak
def test_a_run_without_restarts_left_ends_and_names_the_dead_worker(
    tmp_path: Path, strike: Callable[..., list[float]]
) -> None:
    strike("update_actor", 1, rank=1, signum=signal.SIGKILL)
    with pytest.raises(WorkerDied, match="rank 1, failed in"):
        run(tmp_path / "run", "trainer.max_restarts=0")
    assert read_events(tmp_path / "run")[-1]["decision"] == "raise"


def test_the_policy_replaces_lost_workers_a_few_times_without_progress() -> None:
    died, silent = WorkerDied("actor", 1, "update_actor", "its process is gone"), WorkerTimeout("silent")
    policy = RestartGroup(max_restarts=2)
    assert policy.decide(died, progress=0) is policy.decide(silent, progress=0) is Decision.RESTART_GROUP
    assert policy.decide(died, progress=0) is Decision.RAISE
    assert policy.decide(died, progress=5) is Decision.RESTART_GROUP, "a newer checkpoint makes it start counting anew"
    lost_peer = WorkerError("actor", 0, "update_actor", "RuntimeError: [gloo] Connection closed by peer")
    assert policy.decide(lost_peer, progress=6) is Decision.RESTART_GROUP
    assert policy.decide(WorkerError("actor", 0, "update_actor", "ValueError: mine"), progress=6) is Decision.RAISE
    own_fault = WorkerError("actor", 0, "update_actor", "TypeError: unsupported operand: PeerGroup and NCCLConfig")
    assert policy.decide(own_fault, progress=6) is Decision.RAISE, "its own code is wrong, whatever it is called"
    for cause in (
        "ConnectionError: [Errno 111] Connection refused",
        "RuntimeError: CUDA error: peer access is not supported",
    ):
        assert policy.decide(WorkerError("actor", 0, "update_actor", cause), progress=6) is Decision.RAISE, cause
    assert Raise().decide(died, progress=9) is Decision.RAISE


@pytest.mark.soak
def test_samples_that_were_made_ahead_survive_the_loss_of_their_workers(
    tmp_path: Path, strike: Callable[..., list[float]]
) -> None:
    ahead = ["trainer.max_staleness=1", "trainer.n_gpus_per_node=1", "trainer.async_save=false"]
    golden = run(tmp_path / "golden", *ahead)
    assert [step["training/staleness"] for step in golden] == [0, 1, 1, 1]
    killed = strike("update_actor", 3, rank=0, signum=signal.SIGKILL)
    assert run(tmp_path / "run", *ahead) == golden and killed
    assert [e["step"] for e in read_events(tmp_path / "run") if e["kind"] == "resumed"] == [2]


@pytest.mark.soak
def test_a_killed_driver_leaves_no_ray_process_and_the_run_goes_on(tmp_path: Path) -> None:
    words = [*PPO, "trainer.runtime=ray", "trainer.n_gpus_per_node=2", "trainer.total_training_steps=4"]
    golden = run(tmp_path / "golden")
    child = start(tmp_path / "run", *words, "trainer.async_save=false", faults=(Fault("update_actor", nth=3),))
    driver, seen = child.pid, set[int]()
    while child.exitcode is None:
        seen |= ray_processes(driver)
        child.join(0.2)
    assert finish(child) == -signal.SIGKILL and len(seen) >= 4, "the store, the scheduler and two workers were there"
    assert ray_processes_left(driver) == set(), "orphans"
    assert train(tmp_path / "run", *words) == 0
    assert without_clocks(read_metrics(tmp_path / "run")) == golden


@pytest.mark.soak
@pytest.mark.parametrize("algorithm", [[], PPO], ids=["grpo", "ppo"])
def test_runs_on_ray_killed_within_and_at_the_end_of_an_epoch_write_the_golden_metrics(
    tmp_path: Path, golden: Callable[..., list[dict[str, Any]]], algorithm: list[str]
) -> None:
    words = [*algorithm, "trainer.runtime=ray", "trainer.n_gpus_per_node=2", "trainer.total_training_steps=8"]
    words.append("trainer.async_save=false")
    for new_steps in (4, 2):  # an epoch has six
        killed = train(tmp_path / "run", *words, faults=(Fault("gen", nth=new_steps + 1),))
        assert killed == -signal.SIGKILL, (tmp_path / "run.out").read_text()
    assert train(tmp_path / "run", *words) == 0, (tmp_path / "run.out").read_text()
    assert without_clocks(read_metrics(tmp_path / "run")) == golden(*words)
    assert [e["step"] for e in read_events(tmp_path / "run") if e["kind"] == "resumed"] == [4, 6]


@pytest.mark.soak
def test_a_run_on_ray_that_is_told_to_stop_saves_leaves_nothing_and_goes_on(
    tmp_path: Path, golden: Callable[..., list[dict[str, Any]]]
) -> None:
    words = [*PPO, "trainer.runtime=ray", "trainer.n_gpus_per_node=2", "trainer.total_training_steps=4"]
    words += ["trainer.save_freq=-1", "trainer.async_save=false"]
    for phase, signum, done in (("gen", signal.SIGTERM, 1), ("update_actor", signal.SIGINT, 3)):
        child = start(tmp_path / "run", *words, faults=(Fault(phase, nth=2, signum=signum),))
        driver = child.pid
        assert finish(child) == 128 + signum, (tmp_path / "run.out").read_text()
        stopped = read_events(tmp_path / "run")[-1]
        assert stopped["kind"] == "stopped" and stopped["step"] == done
        assert ray_processes_left(driver) == set(), "orphans"
    assert train(tmp_path / "run", *words) == 0, (tmp_path / "run.out").read_text()
    assert without_clocks(read_metrics(tmp_path / "run")) == golden(*words)


def ray_processes_left(driver: int) -> set[int]:
    """Those that stay when the driver is gone; Ray's own agents look for their dead cluster for a minute."""
    deadline = time.monotonic() + LIMIT_S
    while (left := ray_processes(driver)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def ray_processes(driver: int) -> set[int]:
    """The processes of the Ray that a driver started: they are of its session, or name its session folder."""
    found = {pid for pid in of_session(driver) if pid != driver}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if f"_{driver}/".encode() in text and b"session_" in text:
                    found.add(int(entry.name))
    return found
