"""Waiting for Ray workers: every wait has a limit, sees a death at once, and names what it waited for.

`RayFuture` is one call on some ranks. A wait looks at all of them, so that a rank that died or raised is reported while
its peers still hang in a collective. Of several failures the one that came first is raised, a death before all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from podium.errors import PodiumError, WorkerDied, WorkerError, WorkerTimeout
from podium.single_controller import logs
from podium.single_controller.futures import WorkerFuture
from podium.single_controller.lost_peer import speaks_of_lost_peer
from podium.single_controller.ray_process import Failure, Placement, unpack
from podium.stop_points import stop_point

if TYPE_CHECKING:
    from ray import ObjectRef

_LOOK_S = 0.5  # how long one failure may go unseen
_GRACE_S = 1.0  # after a failure: how long others may take to show that theirs came first
_PEER_GRACE_S = 15.0  # the same when the failure speaks of a lost peer: Ray may still be finding out who died
_TAIL_LIMIT_S = 5.0


@dataclass(frozen=True)
class Crew:
    """Whom messages speak of: where each rank's process is, as far as it is known."""

    role: str
    world_size: int
    placements: Sequence[Placement]

    def last_lines(self, rank: int, ask_stack: bool = False) -> str:
        """The end of a worker's log with a headline, or nothing."""
        if rank >= len(self.placements):
            return ""
        place = self.placements[rank]
        pid = place.pid if ask_stack else None
        if place.node_id == ray.get_runtime_context().get_node_id():
            text = logs.tail(place.log_path, pid)
        else:
            text = tail_elsewhere(place, pid)
        return f"\n--- last log lines of rank {rank} ({place.log_path}) ---\n{text}" if text else ""


class RayFuture(WorkerFuture[list[Any]]):
    """One method call on some ranks; `get` returns their results in the order given."""

    def __init__(self, refs: Mapping[int, ObjectRef[Any]], crew: Crew, method: str, timeout_s: float) -> None:
        self._pending = dict(refs)
        self._ranks = list(refs)
        self._results: dict[int, Any] = {}
        self._error: PodiumError | None = None
        self._crew, self._method, self._timeout_s = crew, method, timeout_s

    def done(self) -> bool:
        if self._error is None:
            self._look(0.0)
        return not self._pending or self._error is not None or bool(self._failed())

    def get(self, timeout: float | None = None, beside: WorkerFuture[Any] | None = None) -> list[Any]:
        limit_s = self._timeout_s if timeout is None else timeout
        deadline = time.monotonic() + limit_s
        while self._error is None and self._pending:
            stop_point()
            self._look(min(_LOOK_S, deadline - time.monotonic()))
            if self._failed():
                break
            if beside is not None and self._pending and beside.done():
                beside.get()
            if self._pending and time.monotonic() >= deadline:
                raise self._timed_out(limit_s)
        if self._error is None and self._failed():
            self._let_others_show()
            self._error = self._worst()
            self._pending.clear()
        if self._error is not None:
            raise self._error
        return [self._results[rank] for rank in self._ranks]

    def _look(self, seconds: float) -> None:
        """Take in what is ready; waits until all is, at most so long."""
        if not self._pending:
            return
        rank_of = {ref: rank for rank, ref in self._pending.items()}
        ready, _ = ray.wait(list(rank_of), num_returns=len(rank_of), timeout=max(0.0, seconds))
        for ref, outcome in zip(ready, _outcomes(ready), strict=True):
            rank = rank_of[ref]
            self._results[rank] = outcome
            del self._pending[rank]

    def _failed(self) -> dict[int, Failure | Death]:
        return {rank: value for rank, value in self._results.items() if isinstance(value, Failure | Death)}

    def _let_others_show(self) -> None:
        """Wait a little for a failure that explains the one seen; a death needs no explanation."""
        failed = self._failed().values()
        is_lost_peer = all(speaks_of_lost_peer(failure.cause) for failure in failed)
        deadline = time.monotonic() + (_PEER_GRACE_S if is_lost_peer else _GRACE_S)
        while self._pending and time.monotonic() < deadline:
            if any(isinstance(failure, Death) for failure in self._failed().values()):
                return
            self._look(min(_LOOK_S, deadline - time.monotonic()))

    def _worst(self) -> PodiumError:
        failed = self._failed()
        dead = [rank for rank, failure in failed.items() if isinstance(failure, Death)]
        rank = dead[0] if dead else min(failed, key=lambda rank: failed[rank].time_s)
        others = sorted(set(failed) - {rank})
        also = f" (then also rank {', '.join(map(str, others))})" if others else ""
        failure = failed[rank]
        role, method = self._crew.role, self._method
        if isinstance(failure, Failure):
            return WorkerError(role, rank, method, failure.cause + also, failure.traceback)
        return WorkerDied(role, rank, method, failure.cause + also + self._crew.last_lines(rank))

    def _timed_out(self, limit_s: float) -> WorkerTimeout:
        silent = sorted(self._pending)
        what = f"rank {silent[0]}" if len(silent) == 1 else f"ranks {', '.join(map(str, silent))}"
        return WorkerTimeout(
            f"{self._crew.role} worker, {what} of {self._crew.world_size}, did not finish {self._method}() within "
            f"{round(limit_s, 2):g} s. If the work may take longer, raise trainer.worker_timeout_s "
            "(trainer.worker_start_timeout_s for the start)."
            + "".join(self._crew.last_lines(rank, ask_stack=True) for rank in silent[:2]),
            self._crew.role,
            silent[0],
        )


@dataclass(frozen=True)
class Death:
    """What Ray says about a process that is gone."""

    cause: str
    time_s: float


def _outcomes(refs: list[ObjectRef[Any]]) -> list[Any]:
    """The results of calls that are ready; failures of every kind as values."""
    try:
        return [unpack(value) for value in ray.get(refs)]  # all at once is much cheaper
    except ray.exceptions.RayError:
        return [_outcome(ref) for ref in refs]


def _outcome(ref: ObjectRef[Any]) -> Any:
    try:
        return unpack(ray.get(ref))
    except (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError) as error:
        return Death(f"its process is gone{_reason(str(error))}", time.time())
    except ray.exceptions.RayTaskError as error:  # outside our own boundary: arguments or result would not travel
        frames = getattr(error, "traceback_str", None) or str(error)  # one that is also of its cause's type lacks them
        return Failure(f"{type(error.cause).__name__}: {error.cause}", frames, time.time())
    except ray.exceptions.RayError as error:
        return Failure(f"{type(error).__name__}: {error}", "", time.time())


def _reason(text: str) -> str:
    """Ray's sentence on why the actor died, without the rest of its page."""
    found = re.search(r"The actor is dead because (.+?)(?:\. |\.?\n|\.?$)", text)
    sentence = f": {found[1]}" if found else ""
    if "killed" in text.lower() and "out-of-memory" in text.lower():
        sentence += " (out of memory)"
    return sentence


def tail_elsewhere(place: Placement, pid: int | None) -> str:
    """The last lines of a worker's log, read by a small task on the worker's node."""
    strategy = NodeAffinitySchedulingStrategy(node_id=place.node_id, soft=False)
    read: Any = ray.remote(num_cpus=0, max_retries=0)(logs.tail).options(scheduling_strategy=strategy)
    try:
        return str(ray.get(read.remote(place.log_path, pid), timeout=_TAIL_LIMIT_S))
    except (ray.exceptions.RayError, TimeoutError):  # the node is gone too
        return ""
