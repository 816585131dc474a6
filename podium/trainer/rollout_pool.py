"""Rollout workers in a pool of their own, beside the group that trains; lost ones are replaced in the middle of a run.

To the trainer a `RolloutPool` looks like the group that does both: it generates, and it publishes. A publish is the
trainer's broadcast and every rollout worker's reception, started together. When rollout workers die or fall silent, new
ones take their place, get the weights, and every unfinished request is issued again; a sample depends on its seed and
its weights alone, so it is the same one. The training group is not touched. Starting and ending the workers, and
whether the run deserves new ones, is for `RolloutWorkers` to say (rollout_workers.py).
"""

from __future__ import annotations

from typing import Any, Protocol

from podium.errors import PodiumError, WorkerDied, WorkerError, WorkerTimeout
from podium.metric import Metrics
from podium.single_controller.futures import WorkerFuture
from podium.single_controller.supervise import is_lost

FREE_LIMIT_S = 30.0
"""How long one side of a publish may take to notice that the other is gone."""


class Workers(Protocol):
    """The pool's workers as a matter of life and death."""

    def start(self) -> Any:
        """A new group that has loaded its models."""

    def end(self) -> None:
        """End the group that there is; what waits for it goes on."""

    def lost(self, failure: PodiumError) -> None:
        """Raises the failure unless they are to be replaced."""

    def say(self, text: str) -> None:
        """Tell the user."""


class PoolLost(Exception):
    """Workers of the pool died or fell silent: `failure` says how. The trainer's may still be waiting for them."""

    def __init__(self, failure: PodiumError) -> None:
        super().__init__(str(failure))
        self.failure = failure


class RolloutPool:
    def __init__(self, actor: Any, workers: Workers, keeps_weights: bool = False) -> None:
        """`actor` has loaded its models. `keeps_weights`: it can publish older ones again, as old as requests are."""
        self.actor, self.workers, self.keeps_weights = actor, workers, keeps_weights
        self.rollout: Any = workers.start()
        self.version = -1
        self._unfinished: list[Issued] = []
        try:
            self._connect()
        except PoolLost as loss:
            raise loss.failure from loss

    @property
    def world_size(self) -> int:
        return int(self.rollout.world_size)

    def generate_sequences(self, request: Any) -> Issued:
        issued = Issued(self, request, self.version)
        self._unfinished.append(issued)
        try:
            issued.submit()
        except (WorkerError, WorkerTimeout) as failure:
            self.recover(failure, self.version)
        return issued

    def publish(self, version: int) -> Metrics:
        """Give the newest weights to the rollout workers, those that there are or new ones."""
        try:
            metrics = self._publish(version)
        except PoolLost as loss:
            metrics = self.recover(loss.failure, version)
        self.version = version
        return metrics

    def shutdown(self) -> None:
        self.rollout.shutdown()

    # ---- calls of both sides

    def _connect(self) -> None:
        joined = self.rollout.join_channel(self.actor.offer_channel())
        for note in self._together(self.actor.future_of("join_channel", 1 + self.world_size), joined):
            if note:
                self.workers.say(note)

    def _publish(self, version: int) -> Metrics:
        received = self.rollout.receive()
        metrics: Metrics = self._together(self.actor.future_of("publish", version), received)
        return metrics

    def _resend(self, version: int) -> None:
        received = self.rollout.receive()
        self._together(self.actor.future_of("resend", version), received)

    def _together(self, trainers: WorkerFuture[Any], rollouts: WorkerFuture[Any]) -> Any:
        """The trainer's result. What goes wrong is PoolLost, or the failure that explains the others."""
        try:
            result = trainers.get(beside=rollouts)
            rollouts.get()
        except WorkerTimeout as failure:
            raise PoolLost(self._silence(failure, rollouts)) from failure
        except WorkerError as failure:
            cause = death_behind(failure, rollouts, trainers)
            if isinstance(cause, WorkerDied) and cause.role == self.rollout.role:
                raise PoolLost(cause) from failure
            raise cause from None
        return result

    def _silence(self, failure: WorkerTimeout, rollouts: WorkerFuture[Any]) -> WorkerTimeout:
        """A trainer that waits for silent workers is silent too: name those, if any."""
        try:
            rollouts.get(timeout=0.0)
        except WorkerTimeout as theirs:
            if failure.role != theirs.role:
                text = f"{theirs.role} worker, rank {theirs.rank}, was silent for as long: {failure}"
                return WorkerTimeout(text, theirs.role, theirs.rank)
        except WorkerError:
            pass  # it ended when the trainer gave up
        return failure

    # ---- replacing

    def recover(self, failure: PodiumError, version: int) -> Metrics:
        """New rollout workers with the trainer's weights, which are `version`, and all unfinished requests.

        Raises the failure when it is not theirs, or when that cannot be: the run then starts again as a whole.
        """
        while True:
            waiting = [issued for issued in tuple(self._unfinished) if not issued.has_come()]
            ahead = any(issued.version != version for issued in waiting)
            if not is_lost(failure) or (ahead and not self.keeps_weights):
                raise failure
            self.workers.end()
            if not self.actor.answers(FREE_LIMIT_S):
                raise failure
            self.workers.lost(failure)
            try:
                return self._begin_again(waiting, version)
            except PoolLost as loss:
                failure = loss.failure
            except (WorkerDied, WorkerTimeout) as again:
                if again.role != self.rollout.role:
                    raise
                failure = again

    def _begin_again(self, waiting: list[Issued], version: int) -> Metrics:
        """Each request after the weights it was issued under, the newest weights last."""
        self.rollout = self.workers.start()
        self._connect()
        for older in sorted({issued.version for issued in waiting} - {version}):
            self._resend(older)
            for issued in waiting:
                if issued.version == older:
                    issued.submit()
        metrics = self._publish(version)
        for issued in waiting:
            if issued.version == version:
                issued.submit()
        return metrics

    def forget(self, issued: Issued) -> None:
        self._unfinished.remove(issued)


class Issued(WorkerFuture[Any]):
    """Samples on their way, from the workers that were asked or from those that replaced them."""

    def __init__(self, pool: RolloutPool, request: Any, version: int) -> None:
        self._pool, self._request, self.version = pool, request, version
        self._future: WorkerFuture[Any] | None = None
        self._result: list[Any] = []  # empty until known

    def submit(self) -> None:
        """Ask the workers that there are now."""
        self._future = None
        self._future = self._pool.rollout.generate_sequences(self._request)

    def has_come(self) -> bool:
        """Whether the samples are here, whatever became of those who made them."""
        if not self._result and self._future is not None and self._future.done():
            try:
                self._finish(self._future.get())
            except PodiumError:
                return False
        return bool(self._result)

    def done(self) -> bool:
        return bool(self._result) or (self._future is not None and self._future.done())

    def get(self, timeout: float | None = None, beside: WorkerFuture[Any] | None = None) -> Any:
        while not self._result:
            assert self._future is not None
            try:
                self._finish(self._future.get(timeout, beside))
            except (WorkerError, WorkerTimeout) as failure:
                if timeout is not None and isinstance(failure, WorkerTimeout):
                    raise  # the caller's patience is not the workers' limit
                self._pool.recover(failure, self._pool.version)
        return self._result[0]

    def _finish(self, result: Any) -> None:
        self._result.append(result)
        self._pool.forget(self)


def death_behind(failure: WorkerError, *futures: WorkerFuture[Any]) -> WorkerError:
    """The death of a worker on either side that explains what the others say: a connection breaks before Ray knows."""
    if isinstance(failure, WorkerDied):
        return failure
    for future in futures:
        try:
            future.get(timeout=FREE_LIMIT_S)
        except WorkerDied as death:
            return death
        except (WorkerError, WorkerTimeout):
            pass
    return failure
