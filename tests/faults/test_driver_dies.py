"""The driver is killed in every phase; the same command goes on and the record is that of an unbroken run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_driver import PPO, Fault, train, without_clocks

from podium.tracking import read_events, read_metrics

Golden = Callable[..., list[dict[str, Any]]]

EVERY_PHASE = [
    *("load", "gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"),
    *("update_weights", "record", "testing", "stage", "seal", "renamed", "retain"),
]


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.name not in (".metadata",)]


@pytest.mark.slow
def test_ppo_killed_in_every_phase_writes_the_golden_metrics(tmp_path: Path, golden: Golden) -> None:
    words = [*PPO, "trainer.total_training_steps=20"]  # over three ends of an epoch of six steps
    for number, phase in enumerate(EVERY_PHASE):
        code = train(tmp_path / "run", *words, faults=(Fault(phase, nth=1 + number % 2 * (phase != "load")),))
        assert code == -signal.SIGKILL, (phase, (tmp_path / "run.out").read_text())
    assert train(tmp_path / "run", *words) == 0, (tmp_path / "run.out").read_text()
    assert without_clocks(read_metrics(tmp_path / "run")) == golden(*words)
    assert leftovers(tmp_path) == []
    assert read_events(tmp_path / "run")[-1]["kind"] == "finished"


@pytest.mark.parametrize("step", [4, 6], ids=["in the middle of an epoch", "at the end of an epoch"])
def test_grpo_killed_goes_on_with_the_right_rows(tmp_path: Path, golden: Golden, step: int) -> None:
    words = ["trainer.total_training_steps=8", "trainer.async_save=false"]
    assert train(tmp_path / "run", *words, faults=(Fault("gen", nth=step + 1),)) == -signal.SIGKILL
    assert train(tmp_path / "run", *words) == 0
    assert without_clocks(read_metrics(tmp_path / "run")) == golden(*words)
    assert [e["step"] for e in read_events(tmp_path / "run") if e["kind"] == "resumed"] == [step]


def test_a_run_killed_before_its_first_checkpoint_begins_anew(tmp_path: Path, golden: Golden) -> None:
    words = ["trainer.total_training_steps=8", "trainer.async_save=false"]
    assert train(tmp_path / "run", *words, faults=(Fault("update_actor"),)) == -signal.SIGKILL
    assert train(tmp_path / "run", *words) == 0
    assert without_clocks(read_metrics(tmp_path / "run")) == golden(*words)
