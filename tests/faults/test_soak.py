"""Two hundred random kills, stops and full disks over one run: the golden metrics, and nothing left behind.

`make test-faults` runs it; PODIUM_SOAK_EVENTS and PODIUM_SOAK_SEED change it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest
from fault_driver import PPO, Fault, finish, of_session, start, train, without_clocks

from podium.checkpoint.store import CheckpointStore
from podium.tracking import read_events, read_metrics

PHASES = [
    *("load", "gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"),
    *("update_weights", "record", "testing", "stage", "seal", "renamed", "retain"),
]
ENDS = (-signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGTERM)
"""Exit codes; the last one when the signal came before the run took it in hand."""
ENDLESS = "trainer.total_training_steps=100000"
"""While faults strike: how far a process comes depends on the machine, and the run must outlast them anywhere."""
Golden = Callable[..., list[dict[str, Any]]]


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_run_survives_two_hundred_random_faults(tmp_path: Path, golden: Golden) -> None:
    wanted = int(os.environ.get("PODIUM_SOAK_EVENTS", 200))
    chance = random.Random(int(os.environ.get("PODIUM_SOAK_SEED", 1)))
    shared_memory = set(os.listdir("/dev/shm"))
    happened: Counter[str] = Counter()
    sessions = []
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    while happened.total() < wanted:
        session, code, faults = attempt(tmp_path / "run", chance, happened)
        sessions.append(session)
        assert code in ENDS, f"process {len(sessions)}, {faults}:\n{(tmp_path / 'run.out').read_text()[-4000:]}"
        assert not store.newest().broken
        happened["disk full"] = sum(e["kind"] == "checkpoint_failed" for e in read_events(tmp_path / "run"))
    step = max(store.steps(), default=0)
    print(dict(happened), f"in {len(sessions)} processes, {step} steps")
    words = [*PPO, f"trainer.total_training_steps={step + 5}"]
    assert train(tmp_path / "run", *words, limit_s=3600) == 0, (tmp_path / "run.out").read_text()[-4000:]
    assert without_clocks(read_metrics(tmp_path / "run")) == golden(*words)
    assert [pid for session in sessions for pid in of_session(session)] == [], "orphans"
    assert [p for p in tmp_path.rglob(".*") if p.name != ".metadata"] == [], "half-written files"
    assert list((tmp_path / "run.tmp").iterdir()) == [], "temporary files"
    assert left_unused(shared_memory) == set(), "shared memory"


def left_unused(before: set[str], within_s: float = 60.0) -> set[str]:
    """New segments that stay without a user; another program's may be seen as it makes or removes them."""
    left = unused(set(os.listdir("/dev/shm")) - before)
    deadline = time.monotonic() + within_s
    while left and time.monotonic() < deadline:
        time.sleep(1.0)
        left &= unused(left)
    return left


def unused(segments: set[str]) -> set[str]:
    """Those that no process uses; on a shared machine the others belong to somebody else's running program."""
    used = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            text = maps.read_text()
            used |= {name for name in segments if f"/dev/shm/{name}" in text}
    return {name for name in segments - used if Path("/dev/shm", name).exists()}


def test_a_segment_that_nobody_uses_is_seen() -> None:
    segment = SharedMemory(create=True, size=16)
    try:
        assert unused({segment.name}) == set()
        left = Path("/dev/shm", f"{segment.name}-left")
        left.write_bytes(b"x")
        try:
            assert unused({segment.name, left.name}) == {left.name}
        finally:
            left.unlink()
    finally:
        segment.close()
        segment.unlink()


def attempt(folder: Path, chance: random.Random, happened: Counter[str]) -> tuple[int, int, str]:
    """One process: perhaps a full disk and a pause on its way, then a kill or a signal. Its session, its exit code, and
    what it met."""
    faults = []
    if chance.random() < 0.5:
        faults.append(Fault("stage", nth=1, max_file_bytes=chance.choice((0, 4096, 60_000, 5_000_000)), lasts=1))
    signum = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
    by_clock = chance.random() < 0.3
    if not by_clock:
        phase = chance.choice(PHASES)
        faults.append(Fault(phase, nth=1 if phase == "load" else chance.randint(1, 3), signum=signum))
    child = start(folder, *PPO, ENDLESS, f"trainer.async_save={chance.choice(('true', 'false'))}", faults=tuple(faults))
    session = child.pid
    if chance.random() < 0.5:
        time.sleep(chance.uniform(0.2, 1.0))
        happened["stop"] += send(child.pid, signal.SIGSTOP)
        time.sleep(0.05)
        send(child.pid, signal.SIGCONT)
    if by_clock:
        time.sleep(chance.uniform(0.2, 1.5))
        send(child.pid, signum)
    code = finish(child)
    happened[str(code)] += 1
    return session, code, f"{faults}{f', then {signum!r} by the clock' if by_clock else ''}"


def send(pid: int, signum: int) -> bool:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True
