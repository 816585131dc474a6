"""SIGTERM, SIGINT and the end of a capacity block: the phase is finished or dropped, the run saved, the code right."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_driver import PPO, TINY, Fault, train, without_clocks

from podium.checkpoint.store import CheckpointStore
from podium.config.schema import TrainerConfig
from podium.tracking import read_events, read_metrics
from podium.trainer.stopping import EXPIRATION_VARIABLES, RunStopped, StopSignals

Golden = Callable[..., list[dict[str, Any]]]

DROPPED = ("gen", "reward", "old_log_prob", "ref", "values")
FINISHED = ("adv", "update_critic", "update_actor", "update_weights", "record")
AFTER = ("testing", "stage", "seal", "retain")


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
    script = tmp_path / "esi.py"
    script.write_text(
        "import os, sys, time\n"
        f"os.environ['{EXPIRATION_VARIABLES[1]}'] = str(time.time() + 600)\n"
        "from podium.cli.main import main\n"
        "sys.exit(main(['train', *sys.argv[1:]]))\n"
    )
    settings = [*TINY, f"trainer.default_local_dir={tmp_path / 'run'}", *words]
    command = [sys.executable, str(script), *settings, "trainer.save_freq=-1", esi]
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == 143
    assert [e["kind"] for e in read_events(tmp_path / "run")] == ["started", "checkpoint_saved", "stopped"]
    assert train(tmp_path / "run", *words) == 0
    assert without_clocks(read_metrics(tmp_path / "run")) == golden(*words)


def test_there_is_time_left_until_a_step_and_a_save_no_longer_fit() -> None:
    def stopping(left_s: float) -> StopSignals:
        return StopSignals(TrainerConfig(esi_redundant_time=10), {EXPIRATION_VARIABLES[0]: str(time.time() + left_s)})

    for left_s, stops in ((60 + 30 + 10 + 5, False), (60 + 30 + 10 - 1, True)):
        watch = stopping(left_s)
        watch.step_took(30)
        watch.step_took(5)
        if stops:
            with pytest.raises(RunStopped, match="taken away"):
                watch.check()
        else:
            watch.check()


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
