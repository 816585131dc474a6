"""SIGTERM, SIGINT and the end of a capacity block: the phase is finished or dropped, the run saved, the code right."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fault_driver import LIMIT_S, PPO, TINY, Fault, finish, start, train, without_clocks

from podium.checkpoint.store import CheckpointStore
from podium.config.schema import TrainerConfig
from podium.stop_points import result_of, stop_point
from podium.tracking import read_events, read_metrics
from podium.trainer.stopping import EXPIRATION_VARIABLES, NOTHING_TO_SAVE_S, RunStopped, StopSignals

Golden = Callable[..., list[dict[str, Any]]]

DROPPED = ("gen", "reward", "old_log_prob", "ref", "values")
FINISHED = ("adv", "update_critic", "update_actor", "update_weights", "record")
AFTER = ("testing", "stage", "seal", "retain")


PATCHED = """
import os, signal, sys, threading, time
from podium.cli.main import main
from podium.stop_points import stop_point
from podium.trainer import main_ppo, stopping
{patch}
sys.exit(main(["train", *sys.argv[1:]]))
"""


def train_after(patch: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`podium train` in a process that was changed by some lines before."""
    settings = [*TINY, f"trainer.default_local_dir={folder}", *words]
    command = [sys.executable, "-c", PATCHED.format(patch=patch), *settings]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.mark.slow
def test_a_signal_in_any_phase_saves_the_last_finished_step(tmp_path: Path, golden: Golden) -> None:
    words = [*PPO, "trainer.total_training_steps=20"]
    done = 0
    for number, phase in enumerate([*DROPPED, *FINISHED, *AFTER]):
        signum, code = ((signal.SIGTERM, 143), (signal.SIGINT, 130))[number % 2]
        # the first validation is the one that the stop before it left out
        fault = Fault(phase, nth=2 if phase == "testing" else 1, signum=signum)
        # saves only when told to stop, except where the signal hits a save
        freq = "trainer.save_freq=1" if phase in ("stage", "seal", "retain") else "trainer.save_freq=-1"
        code_seen = train(tmp_path / "run", *words, freq, "trainer.async_save=false", faults=(fault,))
        assert code_seen == code, (tmp_path / "run.out").read_text()
        done += 0 if phase in DROPPED else 1
        found = CheckpointStore(tmp_path / "run" / "checkpoints").newest()
        assert (int(found.path.name.split("_")[-1]) if found.path else 0) == done, phase
        assert not found.broken
        stopped = read_events(tmp_path / "run")[-1]
        assert stopped["kind"] == "stopped" and stopped["step"] == done
    assert train(tmp_path / "run", *words) == 0
    assert without_clocks(read_metrics(tmp_path / "run")) == golden(*words)


def test_a_run_on_an_instance_that_will_be_taken_away_saves_and_leaves(tmp_path: Path, golden: Golden) -> None:
    words = ["trainer.total_training_steps=8", "trainer.async_save=false"]
    esi = "trainer.esi_redundant_time=1000"
    ending = f"os.environ['{EXPIRATION_VARIABLES[1]}'] = str(time.time() + 600)\n"
    assert train_after(ending, tmp_path / "run", *words, "trainer.save_freq=-1", esi).returncode == 143
    assert [e["kind"] for e in read_events(tmp_path / "run")] == ["started", "checkpoint_saved", "stopped"]
    assert train(tmp_path / "run", *words) == 0
    assert without_clocks(read_metrics(tmp_path / "run")) == golden(*words)


def test_there_is_time_left_until_a_step_and_a_save_no_longer_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.trainer.stopping.time", SimpleNamespace(time=lambda: 1000.0))

    def stopping(left_s: float) -> StopSignals:
        return StopSignals(
            TrainerConfig(esi_redundant_time=10, stop_grace_s=0), {EXPIRATION_VARIABLES[0]: str(1000.0 + left_s)}
        )

    for left_s, stops in ((60 + 30 + 10 + 5, False), (60 + 30 + 10 - 1, True)):
        watch = stopping(left_s)
        watch.step_took(30)
        watch.step_took(5)
        if stops:
            with pytest.raises(RunStopped, match="taken away"):
                watch.check()
        else:
            watch.check()
    slow_disk = stopping(300 + 30 + 10 - 1)
    slow_disk.step_took(30, save_s=300)
    with pytest.raises(RunStopped, match="taken away"):
        slow_disk.check()


def test_a_second_interrupt_ends_at_once_even_in_a_protected_phase() -> None:
    stopping = StopSignals(TrainerConfig(stop_grace_s=0))
    with stopping, pytest.raises(KeyboardInterrupt), stopping.protected():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_a_protected_phase_is_finished_first() -> None:
    reached = []
    stopping = StopSignals(TrainerConfig(stop_grace_s=0))
    with stopping, pytest.raises(RunStopped) as caught, stopping.protected():
        signal.raise_signal(signal.SIGTERM)
        reached.append(True)
    assert reached and caught.value.exit_code == 143


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals(TrainerConfig()):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_stop_that_a_library_wraps_into_its_own_error_is_still_a_stop() -> None:
    stopping, left = StopSignals(TrainerConfig(stop_grace_s=0)), list[str]()
    with pytest.raises(RunStopped), stopping.guard(lambda stop: left.append(stop.reason)):
        try:
            signal.raise_signal(signal.SIGTERM)
            stop_point()
        except BaseException as error:
            raise RuntimeError("CheckpointException") from error
    assert left == ["got SIGTERM"]


def test_an_error_during_a_protected_phase_is_not_taken_for_a_stop() -> None:
    stopping, left = StopSignals(TrainerConfig(stop_grace_s=0)), list[str]()
    guard = stopping.guard(lambda stop: left.append(stop.reason))
    with pytest.raises(RuntimeError, match="mine"), guard, stopping.protected():
        signal.raise_signal(signal.SIGTERM)
        raise RuntimeError("mine")
    assert left == [], "a half-made step is not saved"


def test_a_signal_raises_nothing_until_a_stop_point() -> None:
    """Raised inside Thread.start, it would leave a pool's thread that nobody ends (and did)."""
    stopping, reached = StopSignals(TrainerConfig(stop_grace_s=0)), []
    with pytest.raises(RunStopped), stopping:
        signal.raise_signal(signal.SIGTERM)
        reached.append("after the signal")
        stop_point()
        reached.append("after the stop point")
    assert reached == ["after the signal"]
    stop_point()  # the run is over: nothing asks any more


def test_a_wait_for_work_of_another_thread_is_left() -> None:
    never: Future[None] = Future()
    stopping = StopSignals(TrainerConfig(stop_grace_s=0))
    with pytest.raises(RunStopped), stopping:
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGTERM]).start()  # not before the handler is there
        result_of(never)


def test_waiting_with_a_limit_gives_the_result_the_error_or_a_timeout() -> None:
    future: Future[int] = Future()
    with pytest.raises(TimeoutError):
        result_of(future, 0.05)
    threading.Timer(0.3, future.set_result, [7]).start()
    assert result_of(future, LIMIT_S) == result_of(future) == 7
    failing: Future[int] = Future()
    failing.set_exception(TimeoutError("the work's own"))
    with pytest.raises(TimeoutError, match="the work's own"):
        result_of(failing)


def test_other_threads_are_not_stopped() -> None:
    with StopSignals(TrainerConfig(stop_grace_s=0)) as stopping:
        stopping.request(signal.SIGTERM, "test")
        thread = threading.Thread(target=stop_point)
        thread.start()
        thread.join()


HANGS = """
import signal, sys, threading
from podium.config.schema import TrainerConfig
from podium.trainer.stopping import StopSignals
with StopSignals(TrainerConfig(stop_grace_s=0.5)) as stopping, stopping.protected():
    def stuck_here():
        signal.raise_signal(signal.SIGTERM)
        threading.Event().wait()
    stuck_here()
"""


def test_leaving_that_hangs_ends_after_the_grace_time_and_says_where_it_was() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 143
    assert "got SIGTERM: stopping" in ended.stderr and "longer than 0.5 s" in ended.stderr
    assert "stuck_here" in ended.stderr


def test_a_stop_during_set_up_ends_the_process_whatever_is_under_way(tmp_path: Path) -> None:
    """The model is being loaded, and goes on being loaded: nothing is to be saved, so nobody waits for it."""
    slow = (
        "def build_trainer(config):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    threading.Event().wait()\n"
        "main_ppo.build_trainer, stopping.NOTHING_TO_SAVE_S = build_trainer, 0.5\n"
    )
    assert train_after(slow, tmp_path / "run").returncode == 130


def test_an_interrupt_that_is_dropped_before_the_run_begins_ends_it_all_the_same(tmp_path: Path) -> None:
    """Python itself drops what is raised in a destructor, and many a library what is raised in an import."""
    drops_it = (
        "class Library:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        for _ in range(1000): pass\n"
        "def run_ppo(config):\n"
        "    Library()\n"
        "    threading.Event().wait()\n"
        "main_ppo.run_ppo, stopping.NOTHING_TO_SAVE_S = run_ppo, 0.5\n"
    )
    ended = train_after(drops_it, tmp_path / "run")
    assert ended.returncode == 130 and "Exception ignored" in ended.stderr


def test_a_thread_that_a_library_leaves_behind_does_not_keep_a_stopped_run(tmp_path: Path) -> None:
    leaves_a_thread = (
        "def build_trainer(config):\n"
        "    threading.Thread(target=threading.Event().wait).start()\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    stop_point()\n"
        "main_ppo.build_trainer, stopping.LEAVE_S = build_trainer, 0.5\n"
    )
    assert train_after(leaves_a_thread, tmp_path / "run").returncode == 143


def test_a_stop_with_lost_workers_starts_no_new_ones(tmp_path: Path) -> None:
    """The signal went to the whole group of processes: the workers are gone with it."""
    loses_workers = (
        "from podium.errors import WorkerDied\n"
        "def fit(self):\n"
        "    with self.stopping.guard(self._save_and_leave), self.stopping.protected():\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        raise WorkerDied('actor', 1, 'update_actor', 'its process is gone')\n"
        "main_ppo.RayPPOTrainer.fit = fit\n"
    )
    ended = train_after(loses_workers, tmp_path / "run")
    assert ended.returncode == 143, ended.stderr
    assert "starting new workers" not in ended.stdout + ended.stderr
    assert [event["kind"] for event in read_events(tmp_path / "run")][-1] == "stopped"


def test_between_two_attempts_there_is_nothing_to_save_again() -> None:
    stopping = StopSignals(TrainerConfig())
    with stopping:
        with contextlib.suppress(RuntimeError), stopping.guard(lambda stop: None):
            raise RuntimeError("lost")
        stopping.request(signal.SIGTERM, "test")
        assert stopping._timer is not None and stopping._timer.interval == NOTHING_TO_SAVE_S


@pytest.mark.parametrize("later_s", [0.0, 3.0], ids=["as the first is scored", "when all is written"])
def test_a_stop_is_noticed_while_rewards_of_ones_own_are_streamed(tmp_path: Path, later_s: float) -> None:
    """Scored beside generation: whoever waited for these rewards would not come to an end."""
    begun = tmp_path / "begun"
    (tmp_path / "reward.py").write_text(
        f"import pathlib, time\ndef score(*args, **kwargs):\n    pathlib.Path({str(begun)!r}).touch()\n"
        "    time.sleep(3600)\n    return 1.0\n"
    )
    words = [f"reward.custom_reward_function={tmp_path / 'reward.py'}:score", "reward.timeout_s=7200"]
    child = start(tmp_path / "run", *words, "trainer.total_training_steps=2")
    while not begun.exists():
        assert child.exitcode is None, (tmp_path / "run.out").read_text()
        time.sleep(0.05)
    time.sleep(later_s)
    os.kill(child.pid, signal.SIGTERM)
    assert finish(child) == 143, (tmp_path / "run.out").read_text()
