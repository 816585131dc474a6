"""RayWorkerGroup: one Ray actor per bundle of a pool, behind the methods of the worker class.

Starting, calling and ending the actors is here; what happens inside one is ray_process.py, waiting for them is
ray_calls.py. A batch is split, each part packed and put into the object store once, and each worker pulls its own part
by reference. It does not restart workers; make another group for that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import ray
from ray import cloudpickle
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from podium.errors import PodiumError, WorkerDied, WorkerError, WorkerTimeout
from podium.single_controller import logs
from podium.single_controller.colocate import RayClassWithInitArgs
from podium.single_controller.dispatch import Call
from podium.single_controller.futures import WorkerFuture
from podium.single_controller.group import WorkerGroup, default_role
from podium.single_controller.pools import Lease, RayResourcePool
from podium.single_controller.ray_calls import Crew, RayFuture
from podium.single_controller.ray_process import Placement, WorkerProcess, is_wire, pack
from podium.single_controller.worker import WorkerInfo

_INLINE_BYTES = 64 * 1024  # below this a value travels inside the call: cheaper than the object store
_CLOSE_LIMIT_S = 2.0
_PING_LIMIT_S = 1.0


class _Processes:
    """The actors of a pool; the groups of all colocated roles share them."""

    def __init__(
        self, pool: RayResourcePool, role: str, env_vars: Mapping[str, str], py_executable: str | None
    ) -> None:
        self.pool, self.role = pool, role
        self.env_vars, self.py_executable = dict(env_vars), py_executable
        self.actors: list[Any] = []
        self.placements: list[Placement] = []
        self._lease: Lease | None = None
        self._pings: dict[int, Any] = {}

    @property
    def is_open(self) -> bool:
        return self._lease is not None

    def crew(self, role: str) -> Crew:
        return Crew(role, self.pool.world_size, self.placements)

    def start(self, spec: RayClassWithInitArgs, timeout_s: float) -> None:
        """Make the processes, let them know each other, make the workers in them; all within the limit."""
        deadline = time.monotonic() + timeout_s
        self._lease = self.pool.acquire(timeout_s)
        try:
            self.actors = [self._actor(rank, *bundle) for rank, bundle in enumerate(self._lease.bundles)]
            self.placements = self._all("start", [actor.describe.remote() for actor in self.actors], deadline)
            first = self.placements[0].address
            port = self._all("start", [self.actors[0].hold_port.remote(first)], deadline)[0]
            blob = ray.put(cloudpickle.dumps(spec))
            threads = self.env_vars.get("OMP_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
            infos = [replace(info, master_addr=first, master_port=port) for info in self._infos()]
            calls = [
                actor.start.remote(blob, info, int(threads) if threads else None)
                for actor, info in zip(self.actors, infos, strict=True)
            ]
            self._all("__init__", calls, deadline)
        except BaseException:
            self.stop(grace_s=0.0)
            raise

    def _actor(self, rank: int, placement_group: Any, bundle_index: int) -> Any:
        share = 1.0 / self.pool.max_colocate_count
        environment: dict[str, Any] = {"env_vars": self.env_vars} if self.env_vars else {}
        if self.py_executable is not None:
            environment["py_executable"] = self.py_executable
        folder = self.env_vars.get(logs.FOLDER_VARIABLE) or os.environ.get(logs.FOLDER_VARIABLE)
        remote_cls = ray.remote(
            num_cpus=share,
            num_gpus=share * self.pool.gpus_per_worker if self.pool.use_gpu else 0,
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group, bundle_index),
            runtime_env=environment,
        )(WorkerProcess)
        return remote_cls.remote(logs.log_path(folder, self.role, rank) if folder else None, _own_paths())

    def _infos(self) -> list[WorkerInfo]:
        nodes = [place.node_id for place in self.placements]
        return [
            WorkerInfo(
                role=self.role,
                rank=rank,
                world_size=len(nodes),
                local_rank=nodes[:rank].count(place.node_id),
                local_world_size=nodes.count(place.node_id),
                node=place.address,
                use_gpu=self.pool.use_gpu,
            )
            for rank, place in enumerate(self.placements)
        ]

    def _all(self, what: str, refs: Sequence[Any], deadline: float) -> list[Any]:
        left_s = max(0.0, deadline - time.monotonic())
        return RayFuture(dict(enumerate(refs)), self.crew(self.role), what, left_s).get()

    def dead_ranks(self) -> list[int]:
        """One ping per rank is under way at a time: a dead actor answers it with an error, a busy one not yet."""
        if not self.is_open:
            return list(range(self.pool.world_size))
        for rank, actor in enumerate(self.actors):
            if rank not in self._pings:
                self._pings[rank] = actor.ping.remote()
        rank_of = {ref: rank for rank, ref in self._pings.items()}
        ready, _ = ray.wait(list(rank_of), num_returns=len(rank_of), timeout=_PING_LIMIT_S)
        dead = []
        for ref in ready:
            rank = rank_of[ref]
            del self._pings[rank]
            try:
                RayFuture({rank: ref}, self.crew(self.role), "ping", 0.0).get()
            except WorkerDied:
                dead.append(rank)
        return sorted(dead)

    def answer(self, within_s: float) -> bool:
        """Calls to an actor wait for the one before: an answer says that it is done with all of them."""
        pings = {rank: actor.ping.remote() for rank, actor in enumerate(self.actors)} if self.is_open else {}
        try:
            RayFuture(pings, self.crew(self.role), "ping", within_s).get()
        except (WorkerError, WorkerTimeout):
            return False
        return self.is_open

    def stop(self, grace_s: float = _CLOSE_LIMIT_S) -> None:
        """Let the workers close if they can, then kill them and give the bundles back."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        if ray.is_initialized():
            if grace_s > 0 and self.actors:
                ray.wait([a.close.remote() for a in self.actors], num_returns=len(self.actors), timeout=grace_s)
            for actor in self.actors:
                ray.kill(actor, no_restart=True)
            self._kill_stopped()
        self.pool.release(lease)

    def _kill_stopped(self) -> None:
        """A stopped process cannot follow Ray's wish that it end; on this machine the kernel ends it."""
        here = ray.get_runtime_context().get_node_id()
        for place in self.placements:
            if place.node_id == here and _is_stopped(place.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(place.pid, signal.SIGKILL)


class RayWorkerGroup(WorkerGroup):
    """One worker per bundle of the pool, each a Ray actor in a process of its own.

    `call_timeout_s` limits every call, `method_timeout_s` those of single methods, `start_timeout_s` the start; past
    it WorkerTimeout names role, ranks and method.
    A worker's exception arrives as WorkerError with its traceback, its death as WorkerDied with its last log lines.
    `env_vars` are set in the workers' processes before they start; `py_executable` runs them in another environment.
    """

    def __init__(
        self,
        resource_pool: RayResourcePool,
        ray_cls_with_init: RayClassWithInitArgs,
        name_prefix: str = "",
        start_timeout_s: float = 600.0,
        call_timeout_s: float = 3600.0,
        method_timeout_s: Mapping[str, float] | None = None,
        env_vars: Mapping[str, str] | None = None,
        py_executable: str | None = None,
    ) -> None:
        super().__init__(ray_cls_with_init, name_prefix or default_role(ray_cls_with_init))
        self.call_timeout_s, self.method_timeout_s = call_timeout_s, dict(method_timeout_s or {})
        self._inner_role: str | None = None
        self._processes = _Processes(resource_pool, self.role, env_vars or {}, py_executable)
        self._processes.start(ray_cls_with_init, start_timeout_s)

    @property
    def world_size(self) -> int:
        return self._processes.pool.world_size

    @property
    def placements(self) -> list[Placement]:
        """Where each rank's process is: node, address, pid, log file."""
        return list(self._processes.placements)

    def _submit(self, method: str, calls: Sequence[Call], call_of_rank: Mapping[int, int]) -> WorkerFuture[list[Any]]:
        if not self._processes.is_open:
            raise PodiumError(f"the group of {self.role} is shut down; {method}() cannot be called")
        sent: dict[int, Any] = {}  # by identity: what several ranks get is packed and put once
        packed = [[_travelling(value, sent) for value in (*args, *kwargs.values())] for args, kwargs in calls]
        refs = {}
        for rank, index in call_of_rank.items():
            args, kwargs = calls[index]
            invoke = self._processes.actors[rank].invoke
            refs[rank] = invoke.remote(self._inner_role, method, len(args), tuple(kwargs), *packed[index])
        limit_s = self.method_timeout_s.get(method, self.call_timeout_s)
        return RayFuture(refs, self._processes.crew(self.role), method, limit_s)

    def _role_group(self, role: str, spec: RayClassWithInitArgs) -> Self:
        group = type(self).__new__(type(self))
        WorkerGroup.__init__(group, spec, role)
        group.call_timeout_s, group.method_timeout_s = self.call_timeout_s, self.method_timeout_s
        group._inner_role, group._processes = role, self._processes
        return group

    def dead_ranks(self) -> list[int]:
        return self._processes.dead_ranks()

    def answers(self, within_s: float) -> bool:
        return self._processes.answer(within_s)

    def shutdown(self) -> None:
        self._processes.stop()


def _is_stopped(pid: int) -> bool:
    """Whether a process got SIGSTOP, where the system tells (Linux)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def _travelling(value: Any, sent: dict[int, Any]) -> Any:
    """How a value goes to workers: as it is when small, else as a reference into the object store."""
    if id(value) not in sent:
        packed = pack(value)
        sent[id(value)] = ray.put(packed) if _num_bytes(packed) > _INLINE_BYTES else packed
    return sent[id(value)]


def _num_bytes(value: Any) -> int:
    """About how large a packed value is."""
    if isinstance(value, list | tuple | set | frozenset):
        return 64 + sum(_num_bytes(item) for item in value)
    if isinstance(value, dict):
        return 64 + sum(_num_bytes(item) for item in value.values())
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if is_wire(value):
        return int(value.num_bytes()) + 64 * len(value.non_tensor_batch) * int(value.num_rows)
    return int(getattr(value, "nbytes", 64))


def _own_paths() -> list[str]:
    """Where this process finds modules beyond its Python installation; workers look there last."""
    inside = tuple({sys.prefix, sys.base_prefix})
    return [os.path.abspath(path) for path in sys.path if not path.startswith(inside) and os.path.isdir(path or ".")]
