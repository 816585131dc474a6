"""A peer of bench/rollout.py takes turns with ours, and however it ends, ours goes on."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from peer import Patience, Turn, take_turns

BENCH = sys.path[0]
JOB = {"device": "cpu", "memory_bytes": 1 << 30, "new_tokens": 10}
PROGRAM = """
import os, sys, time
sys.path.insert(0, {bench!r})
from peer import serve
runs = []
def make(job):
    print("a library's greeting")
    {setup}
    def run():
        runs.append(0)
        {run}
        return 10
    return run
serve(make)
"""


def ours() -> Turn:
    return Turn(1.0, 1.0)


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., tuple[list[Turn], list[Turn], str]]:
    """Three turns of ours and of a peer with this set-up and this run."""

    def play(setup: str = "pass", run: str = "pass", timeout_s: float = 300.0, limit_s: float = math.inf):
        program = tmp_path / "some_peer.py"
        program.write_text(PROGRAM.format(bench=BENCH, setup=setup, run=run))
        return take_turns(ours, [sys.executable, str(program)], JOB, 3, Patience(timeout_s, limit_s))

    return play


def test_contestants_have_as_many_turns(play) -> None:
    mine, theirs, failure = play()
    assert (len(mine), len(theirs), failure) == (3, 3, "")


def test_processor_seconds_are_those_of_the_run(play) -> None:
    _, idle, _ = play(setup="sum(range(20_000_000))", run="time.sleep(0.2)")
    _, busy, _ = play(
        setup="pass", run="end = time.process_time() + 0.5\n        while time.process_time() < end: pass"
    )
    assert all(turn.cpu_s < 0.1 and turn.seconds > 0.2 for turn in idle)
    assert all(0.5 <= turn.cpu_s < 1.0 for turn in busy)


def test_a_peer_that_cannot_start_says_why(play) -> None:
    mine, theirs, failure = play(setup="raise ValueError('no such model\\nand more about it')")
    assert (len(mine), theirs, failure) == (3, [], "ended with code 1: ValueError: no such model")


def test_turns_before_a_peer_dies_are_kept(play) -> None:
    # the first run is the warm-up
    mine, theirs, failure = play(
        run="len(runs) > 2 and (print('illegal access', file=sys.stderr, flush=True), os.abort())"
    )
    assert (len(mine), len(theirs), failure) == (3, 1, "ended by SIGABRT: illegal access")


def test_memory_of_a_peer_is_limited(play) -> None:
    mine, theirs, failure = play(run="bytearray(2 << 30)")
    assert (len(mine), theirs) == (3, [])
    assert "MemoryError" in failure


def test_a_peer_that_writes_too_little_has_failed(play) -> None:
    mine, theirs, failure = play(run="return 9")
    assert (len(mine), theirs, failure) == (3, [], "ended with code 1: RuntimeError: wrote 9 of 10 tokens")


def test_a_peer_that_hangs_is_ended(play) -> None:
    mine, theirs, failure = play(run="len(runs) > 1 and time.sleep(3600)", timeout_s=2.0)
    assert (len(mine), theirs) == (3, [])
    assert failure.startswith("no answer in 2 s")


def test_a_pair_that_would_not_end_in_time_is_not_begun() -> None:
    def slow() -> Turn:
        time.sleep(1.2)
        return Turn(1.2, 0.0)

    mine, _, _ = take_turns(slow, None, JOB, 10, Patience(peer_timeout_s=300.0, limit_s=3.0))
    assert 1 <= len(mine) <= 2


def test_a_peer_gets_no_more_time_than_the_bench_has(play) -> None:
    mine, theirs, failure = play(run="time.sleep(3600)", limit_s=2.0)
    assert (mine, theirs) == ([], [])
    assert "which --limit-s had left" in failure


def test_a_peer_that_is_not_installed_is_named(tmp_path: Path) -> None:
    mine, theirs, failure = take_turns(ours, [str(tmp_path / "python")], JOB, 2, Patience(1.0, math.inf))
    assert (len(mine), theirs, failure) == (2, [], f"there is no {tmp_path / 'python'}")
