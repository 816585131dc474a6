"""Running, finished, stopped, crashed, stalled: what the traces of a run say."""

from __future__ import annotations

from typing import Any

import pytest

from podium.dashboard.status import Standing, severity, standing, total_steps, traceback_reason

STARTED = {"kind": "started", "time": 1.0}
TRACEBACK = b"""step 3/10  reward 0.1
Traceback (most recent call last):
  File "train.py", line 1, in run
    raise ValueError("no")
ValueError: no such thing
and a second line
"""


def judge(*events: dict[str, Any], log: bytes = b"", silence_s: float | None = 1.0, **more: Any) -> Standing:
    return standing(events, log, total_steps=10, silence_s=silence_s, step_s=more.get("step_s"))


def test_a_run_that_wrote_lately_is_running() -> None:
    assert judge(STARTED).status == "running"


def test_a_run_that_said_so_is_finished_however_old_it_is() -> None:
    assert judge(STARTED, {"kind": "finished"}, silence_s=1e9).status == "finished"


def test_a_run_that_was_resumed_after_it_finished_runs_again() -> None:
    assert judge(STARTED, {"kind": "finished"}, {"kind": "resumed", "step": 5}).status == "running"


def test_a_run_resumed_at_its_last_step_is_finished() -> None:
    assert judge(STARTED, {"kind": "resumed", "step": 10}, silence_s=1e9).status == "finished"


def test_a_traceback_at_the_end_of_the_log_is_a_crash_with_its_reason() -> None:
    assert judge(STARTED, log=TRACEBACK) == Standing("crashed", "ValueError: no such thing")


def test_a_run_that_went_on_after_a_traceback_is_running() -> None:
    assert traceback_reason(TRACEBACK + b"resumed from x at step 2\nstep 3/10  reward 0.2\n") == ""


def test_an_event_of_failure_is_a_crash() -> None:
    assert judge(STARTED, {"kind": "failed", "error": "out of memory"}) == Standing("crashed", "out of memory")


def test_a_run_that_was_told_to_stop_is_stopped_until_it_goes_on() -> None:
    stopped = {"kind": "stopped", "step": 4, "reason": "SIGTERM"}
    assert judge(STARTED, stopped, log=TRACEBACK, silence_s=1e9) == Standing("stopped", "SIGTERM")
    assert judge(STARTED, stopped, {"kind": "resumed", "step": 4}).status == "running"
    assert judge(STARTED, log=TRACEBACK.replace(b"ValueError: no such thing", b"KeyboardInterrupt")).status == "stopped"


def test_silence_is_measured_in_steps() -> None:
    assert judge(STARTED, silence_s=90, step_s=30).status == "running"
    assert judge(STARTED, silence_s=400, step_s=30).status == "stalled"
    assert judge(STARTED, silence_s=90).status == "stalled"


def test_a_run_without_a_word_is_empty() -> None:
    assert judge(silence_s=None).status == "empty"


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("checkpoint_saved", "info"),
        ("finished", "info"),
        ("non_finite_metrics", "warning"),
        ("worker_restarted", "warning"),
        ("worker_died", "error"),
        ("checkpoint_failed", "error"),
        ("checkpoint_broken", "error"),
        ("workers_lost", "error"),
        ("stopped", "warning"),
    ],
)
def test_severity_follows_the_words_of_an_event(kind: str, level: str) -> None:
    assert severity(kind) == level


def test_total_steps_come_from_the_log_or_the_config() -> None:
    assert total_steps({}, b"podium: x, grpo on y, 60 steps, local\n") == 60
    assert total_steps({}, b"podium: x, 60 steps\nstep 3/80  reward\n") == 80
    assert total_steps({"trainer.total_training_steps": 7}, b"") == 7
    assert total_steps({}, b"") is None
