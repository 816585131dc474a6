"""Rewards in processes of their own: what fails is unscored, what hangs is killed, the rest is scored."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest


def outcomes(futures):
    return [future.result(timeout=300) for future in futures]


def is_gone(pid: int, within_s: float = 300.0) -> bool:
    """Killed processes leave the table a moment later, on a busy machine a longer one."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if "State:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def test_rows_come_back_in_order_with_what_the_function_returned(scorer, rows):
    got = outcomes(scorer("behave").submit(rows(*map(str, range(100)))))
    assert [o.values["score"] for o in got] == [float(i) for i in range(100)]
    assert all(o.values["pid"] != os.getpid() for o in got)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("raise", "behave: RuntimeError: as asked"),
        ("nan", "nan"),
        ("none", "None"),
        ("str", "'seven'"),
        ("nodict", "no 'score'"),
        ("die", "exit code 3"),
        ("unsendable", "cannot be sent"),
    ],
)
def test_what_is_no_score_is_an_error_of_its_row_alone(scorer, rows, response, reason):
    got = outcomes(scorer("behave").submit(rows("1", response, "2", "3")))
    assert [o.status for o in got] == ["ok", "error", "ok", "ok"]
    assert reason in got[1].reason and "behave" in got[1].reason


def test_a_function_that_hangs_is_killed_and_the_rows_behind_it_are_scored(scorer, rows):
    made = scorer("behave", timeout_s=4.0, num_processes=1)
    first = outcomes(made.submit(rows("1")))[0].values["pid"]
    got = outcomes(made.submit(rows("1", "hang", "2", "sleep", "3")))
    assert [o.status for o in got] == ["ok", "timeout", "ok", "timeout", "ok"]
    assert "4 s" in got[1].reason and is_gone(first)
    assert got[4].values["pid"] != first


def test_what_a_killed_function_started_dies_with_it(scorer, rows, tmp_path):
    note = tmp_path / "pid"
    got = outcomes(scorer("behave", timeout_s=5.0).submit(rows("spawn", ground_truth=str(note))))
    assert got[0].status == "timeout"
    assert is_gone(int(note.read_text()))


def test_closing_ends_the_processes_and_leaves_no_row_waiting(scorer, rows, tmp_path):
    made, note = scorer("behave", num_processes=1), tmp_path / "pid"
    pid = outcomes(made.submit(rows("1")))[0].values["pid"]
    futures = made.submit(rows("spawn", "1", ground_truth=str(note)))
    while not note.exists():
        time.sleep(0.02)
    made.close()
    assert [o.status for o in outcomes(futures)] == ["error", "error"]
    assert is_gone(pid) and is_gone(int(note.read_text()))


def test_closing_while_a_process_starts_leaves_no_row_waiting(scorer, rows, monkeypatch):
    """As early as can be: the process is there, the slot does not know it yet."""
    from podium.rewards import runner

    made = scorer("behave", num_processes=1)
    start = runner.RewardProcess.__init__
    started, closing = threading.Event(), threading.Event()

    def slow_start(self, spec):
        start(self, spec)
        started.set()
        assert closing.wait(300)

    monkeypatch.setattr(runner.RewardProcess, "__init__", slow_start)
    futures = made.submit(rows("hang", "1"))
    assert started.wait(300)
    stop = runner._Slot.stop
    monkeypatch.setattr(runner._Slot, "stop", lambda self: (stop(self), closing.set()))
    made.close()
    assert [o.status for o in outcomes(futures)] == ["error", "error"]


def test_a_file_that_does_not_load_there_makes_rows_unscored_with_the_reason(functions, rows):
    from podium.rewards.calling import RewardSpec
    from podium.rewards.runner import RewardRunner

    runner = RewardRunner(RewardSpec({f"{functions}:absent": 1.0}), 1, together=False)
    got = outcomes(runner.submit(rows("1")))
    runner.close()
    assert got[0].status == "error" and "has no function 'absent'" in got[0].reason


def test_a_reward_process_imports_neither_torch_nor_ray():
    import subprocess
    import sys

    code = "import podium.rewards.child, podium.rewards.registry, sys; print({'torch', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
