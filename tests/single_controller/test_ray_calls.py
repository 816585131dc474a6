"""What the controller says when a worker raises, dies, hangs or never starts."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from controller_light import Light, Peer
from controller_toys import make_batch

from podium.errors import PodiumError, WorkerDied, WorkerError, WorkerTimeout
from podium.single_controller import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, ray_calls
from podium.single_controller.ray_calls import tail_elsewhere


@pytest.fixture
def mortal(cluster: None, tmp_path: Path) -> Iterator[RayWorkerGroup]:
    """Two workers that may be hurt."""
    group = RayWorkerGroup(
        RayResourcePool([2], name_prefix="mortal"),
        RayClassWithInitArgs(Light),
        name_prefix="critic",
        start_timeout_s=6000,
        call_timeout_s=300,
        env_vars={"PODIUM_WORKER_LOGS": str(tmp_path)},
    )
    yield group
    group.shutdown()


def wait_until(holds: Callable[[], bool], limit_s: float = 300.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def wait_until_asleep(group: RayWorkerGroup) -> None:
    """Until every rank is in nap() and has said so."""
    logs = [Path(place.log_path) for place in group.placements]
    wait_until(lambda: all("goes to sleep" in log.read_text() for log in logs))


def test_an_exception_arrives_with_role_rank_method_and_the_workers_own_traceback(pair: RayWorkerGroup) -> None:
    with pytest.raises(WorkerError) as caught:
        pair.raise_on(1)
    error = caught.value
    assert (type(error), error.role, error.rank, error.method) == (WorkerError, "toy", 1, "raise_on")
    assert str(error).startswith("toy worker, rank 1, failed in raise_on(): KeyError: 'the missing key'")
    assert '{}["the missing key"]' in error.remote_traceback and "controller_light.py" in error.remote_traceback
    assert "ray" not in error.remote_traceback.replace("raise_on", "")
    assert pair.ask_first("still there?") == "rank 0: still there?"


def test_an_exception_is_seen_while_the_other_rank_hangs(pair: RayWorkerGroup, tmp_path: Path) -> None:
    """The other rank goes on when the failure was seen, and not before."""
    with pytest.raises(WorkerError, match=r"rank 0, failed in raise_on\(\): KeyError"):
        pair.raise_on(0, others_wait_for=str(tmp_path / "seen"))
    (tmp_path / "seen").touch()


def test_an_unknown_method_and_a_wrong_argument_are_the_workers_exceptions(pair: RayWorkerGroup) -> None:
    with pytest.raises(WorkerError, match=r"no_such\(\): AttributeError: 'Toy' object has no attribute 'no_such'"):
        pair.execute_all("no_such")
    with pytest.raises(WorkerError, match=r"scaled\(\): TypeError: .*unexpected keyword argument 'ofset'"):
        pair.scaled(make_batch(1), ofset=1)


def test_a_killed_worker_is_seen_while_the_other_sleeps(mortal: RayWorkerGroup) -> None:
    """Seen by its death: waiting until the call's own limit would be a WorkerTimeout."""
    future = mortal.nap(-1)
    wait_until_asleep(mortal)
    os.kill(mortal.placements[1].pid, signal.SIGKILL)
    with pytest.raises(WorkerDied) as caught:
        future.get()
    message = str(caught.value)
    assert (caught.value.role, caught.value.rank, caught.value.method) == ("critic", 1, "nap")
    assert "its process is gone" in message
    assert "last log lines of rank 1" in message and "rank 1 goes to sleep" in message
    assert future.done()
    with pytest.raises(WorkerDied):
        future.get()
    assert mortal.dead_ranks() == [1] and not mortal.is_alive()
    with pytest.raises(WorkerDied, match="rank 1"):
        mortal.where()


def test_the_death_is_blamed_and_not_the_peer_whose_collective_broke(cluster: None, tmp_path: Path) -> None:
    group = RayWorkerGroup(
        RayResourcePool([2], name_prefix="peers"), RayClassWithInitArgs(Peer), "peer", start_timeout_s=600
    )
    future = group.wait_for_rank_one(f"{tmp_path}/rank")
    wait_until(lambda: all((tmp_path / f"rank{rank}").exists() for rank in range(2)))
    os.kill(group.placements[1].pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"peer worker, rank 1, failed in wait_for_rank_one\(\): its process is gone"):
        future.get()
    group.shutdown()


def test_a_wait_ends_with_the_failure_of_the_call_that_it_needs(mortal: RayWorkerGroup, pair: RayWorkerGroup) -> None:
    """As a broadcast needs its reception: the one that waits might wait until its own limit."""
    waits, needed = mortal.nap(-1), pair.future_of("raise_on", 1)
    with pytest.raises(WorkerError, match=r"toy worker, rank 1, failed in raise_on\(\)"):
        waits.get(beside=needed)
    assert not waits.done()
    assert pair.future_of("ask_first", "well?").get(beside=needed) == "rank 0: well?", "what is there is given"


def test_a_group_answers_when_all_of_it_lives_and_is_free(mortal: RayWorkerGroup, tmp_path: Path) -> None:
    assert mortal.answers(within_s=300)
    future = mortal.nap(1, until=str(tmp_path / "awake"))
    wait_until_asleep(mortal)
    assert not mortal.answers(within_s=0.2), "rank 1 is busy"
    (tmp_path / "awake").touch()
    assert mortal.answers(within_s=300) and future.get() == [0, 1]
    os.kill(mortal.placements[0].pid, signal.SIGKILL)
    wait_until(lambda: mortal.dead_ranks() == [0])
    assert not mortal.answers(within_s=300)
    mortal.shutdown()
    assert not mortal.answers(within_s=300)


def test_a_timeout_names_role_rank_method_seconds_and_shows_where_the_worker_is(mortal: RayWorkerGroup) -> None:
    future = mortal.nap(1)
    wait_until_asleep(mortal)
    mortal.execute_rank_zero("where")  # comes behind its nap(), so that one has been answered
    with pytest.raises(WorkerTimeout) as caught:
        future.get(timeout=3.0)
    message = str(caught.value)
    assert (caught.value.role, caught.value.rank) == ("critic", 1)
    assert "critic worker, rank 1 of 2, did not finish nap() within 3 s" in message
    assert "trainer.worker_timeout_s" in message
    assert "rank 1 goes to sleep" in message
    assert "controller_light.py" in message and "in nap" in message, "the stack of the silent worker"
    mortal.call_timeout_s = 0.5
    with pytest.raises(WorkerTimeout, match=r"ranks? .*1 of 2, did not finish where\(\) within 0.5 s"):
        mortal.where()


def test_the_log_of_a_worker_on_another_node_is_read_there(
    pair: RayWorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.say("far away")
    place = pair.placements[1]
    monkeypatch.setattr(ray_calls, "_TAIL_LIMIT_S", 60.0)  # a busy machine starts the reader late
    assert "far away" in tail_elsewhere(place, None)
    assert tail_elsewhere(dataclasses.replace(place, node_id="0" * 56), None) == "", "a node that is gone"


def test_a_worker_that_cannot_be_made_is_reported_and_leaves_nothing_behind(cluster: None) -> None:
    pool = RayResourcePool([2], name_prefix="broken")
    with pytest.raises(WorkerError, match=r"actor worker, rank 1, failed in __init__\(\): RuntimeError: no weights"):
        RayWorkerGroup(pool, RayClassWithInitArgs(Light, fail_on_rank=1), "actor", start_timeout_s=600)
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Light), "actor", start_timeout_s=6000, call_timeout_s=300)
    assert len(group.where()) == 2
    group.shutdown()
    group.shutdown()
    with pytest.raises(PodiumError, match=r"the group of actor is shut down; where\(\) cannot be called"):
        group.where()


def test_a_start_has_a_limit(cluster: None) -> None:
    """The worker is never ready; whether its process is there by then depends on the machine."""
    pool = RayResourcePool([1], max_colocate_count=2, name_prefix="late")
    lease = pool.acquire(timeout_s=300)
    with pytest.raises(WorkerTimeout, match=r"late worker, rank 0 of 1, did not finish (start|__init__)\(\) within"):
        RayWorkerGroup(pool, RayClassWithInitArgs(Light, never_ready=True), "late", start_timeout_s=0.05)
    pool.release(lease)
