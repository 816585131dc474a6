"""Two commands in one run folder: the second is refused, and the first does not notice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_driver import LIMIT_S, Fault, finish, start, train, without_clocks

from podium.tracking import read_events, read_metrics

WORDS = ["trainer.total_training_steps=8", "trainer.async_save=false"]


def test_a_second_run_in_the_folder_of_a_live_one_is_refused(
    tmp_path: Path, golden: Callable[..., list[dict[str, Any]]]
) -> None:
    first = start(tmp_path / "run", *WORDS, faults=(Fault("gen", nth=3, signum=signal.SIGSTOP),))
    try:
        wait_until_stopped(first.pid)
        before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
        assert train(tmp_path / "run", *WORDS) == 2
        said = " ".join((tmp_path / "run.out").read_text().split())
        assert f"another process trains in {tmp_path / 'run'} now (process {first.pid} on " in said
        assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    finally:
        os.kill(first.pid, signal.SIGCONT)
    assert finish(first) == 0
    assert without_clocks(read_metrics(tmp_path / "run")) == golden(*WORDS)
    assert "failed" not in [event["kind"] for event in read_events(tmp_path / "run")]


def wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, "the run did not come to the fault"
        time.sleep(0.05)
