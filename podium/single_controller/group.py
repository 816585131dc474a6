"""Worker groups: many workers behind one object, and the group that is just one worker in this process.

A group has a method for every registered method of its worker class. `WorkerGroup` is what all groups share: they bind,
split and gather. `LocalWorkerGroup` runs its worker right here, without Ray: exceptions come through as themselves and
a debugger works. The group of Ray workers is in ray_group.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from podium.plugins import closest
from podium.single_controller.colocate import RayClassWithInitArgs, colocated_roles, inner_worker
from podium.single_controller.dispatch import (
    Call,
    Dispatch,
    Registration,
    gather_batches,
    gather_metrics,
    registered_methods,
    share,
    split_call,
)
from podium.single_controller.futures import CompletedFuture, WorkerFuture, resolve
from podium.single_controller.worker import DataParallel, Worker, WorkerInfo
from podium.stop_points import stop_point


class WorkerGroup(ABC):
    """One role's workers. Every registered method of the worker class is a method of the group."""

    def __init__(self, spec: RayClassWithInitArgs, role: str) -> None:
        self.role = role
        self._spec = spec
        self._layout: list[DataParallel] = []  # known from the first data-parallel call on
        for name, registration in registered_methods(spec.cls).items():
            if hasattr(type(self), name) or name in vars(self):
                raise ValueError(f"{spec.cls.__name__}.{name} has the name of a group's own attribute; rename it")
            setattr(self, name, self._bound(name, registration))

    # ---- what a kind of group provides

    @property
    @abstractmethod
    def world_size(self) -> int:
        """How many workers there are."""

    @abstractmethod
    def _submit(self, method: str, calls: Sequence[Call], call_of_rank: Mapping[int, int]) -> WorkerFuture[list[Any]]:
        """Call the ranks in `call_of_rank`, each with the call of that index; results in the order of the ranks."""

    @abstractmethod
    def _role_group(self, role: str, spec: RayClassWithInitArgs) -> Self:
        """A group of the same processes whose methods go to that role's worker inside them."""

    @abstractmethod
    def dead_ranks(self) -> list[int]:
        """The workers whose process is gone. A busy worker is alive."""

    @abstractmethod
    def answers(self, within_s: float) -> bool:
        """Whether every worker is alive and, within so long, has nothing else to do."""

    @abstractmethod
    def shutdown(self) -> None:
        """End the workers and give back what they held; roles that share the processes end too. Again is harmless."""

    # ---- what all groups do

    def execute_all(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call any method, registered or not, on all workers with the same arguments."""
        return list(self._dispatch(method, Dispatch.ONE_TO_ALL, args, kwargs).get())

    def execute_rank_zero(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call any method, registered or not, on rank 0."""
        return self._dispatch(method, Dispatch.RANK_ZERO, args, kwargs).get()

    def future_of(self, method: str, *args: Any, **kwargs: Any) -> WorkerFuture[Any]:
        """The call of a registered method as a future, also where it is registered as blocking."""
        return self._dispatch(method, registered_methods(self._spec.cls)[method].mode, args, kwargs)

    def spawn(self, prefix_set: Iterable[str]) -> dict[str, Self]:
        """The groups of single roles, of a group made with `create_colocated_worker_cls`."""
        roles = colocated_roles(self._spec)
        names = [str(name) for name in prefix_set]
        unknown = [name for name in names if name not in roles]
        if unknown:
            raise ValueError(f"no such role in this group: {unknown}; it has {sorted(roles) or 'no colocated roles'}")
        return {name: self._role_group(name, roles[name]) for name in names}

    def is_alive(self) -> bool:
        return not self.dead_ranks()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        methods = sorted(registered_methods(self._spec.cls))
        near = closest(name, methods)
        hint = f"did you mean {near!r}?" if near else f"it has {methods}"
        raise AttributeError(f"{self._spec.cls.__name__} registers no method {name!r}; {hint}")

    def _bound(self, name: str, registration: Registration) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            future = self._dispatch(name, registration.mode, args, kwargs)
            return future.get() if registration.blocking else future

        method.__name__ = name
        method.__qualname__ = f"{self._spec.cls.__name__}.{name}"
        method.__doc__ = getattr(self._spec.cls, name).__doc__
        return method

    def _dispatch(
        self, method: str, mode: Dispatch, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> WorkerFuture[Any]:
        stop_point()
        call: Call = (tuple(resolve(arg) for arg in args), {key: resolve(value) for key, value in kwargs.items()})
        if mode is Dispatch.ONE_TO_ALL:
            return self._submit(method, [call], dict.fromkeys(range(self.world_size), 0))
        if mode is Dispatch.RANK_ZERO:
            return self._submit(method, [call], {0: 0}).then(lambda results: results[0])
        layout = self._data_parallel_layout()
        split = split_call(call, layout[0].size)
        leaders = {share.rank: rank for rank, share in enumerate(layout) if share.leader}

        def gather(results: list[Any]) -> Any:
            counted = [results[leaders[part]] for part in range(layout[0].size)]
            is_metric = mode is Dispatch.DP_COMPUTE_METRIC
            return gather_metrics(counted, method) if is_metric else gather_batches(counted, split, method)

        return self._submit(method, split.calls, {rank: part.rank for rank, part in enumerate(layout)}).then(gather)

    def _data_parallel_layout(self) -> list[DataParallel]:
        if not self._layout:
            self._layout = checked_layout(self.execute_all(Worker.use_data_parallel.__name__))
        return self._layout


def checked_layout(layout: list[DataParallel]) -> list[DataParallel]:
    sizes = {share.size for share in layout}
    leaders = sorted(share.rank for share in layout if share.leader)
    if len(sizes) != 1 or leaders != list(range(layout[0].size)):
        raise ValueError(f"workers disagree on their data-parallel shares, or a share has not one leader: {layout}")
    return layout


class LocalWorkerGroup(WorkerGroup):
    """One worker in this process.

    Calls run at once in the caller's thread; `blocking=False` returns a completed future. Batches go in and come out by
    reference: the worker gets its own columns and meta_info, so adding and removing them stays its own affair, but the
    tensors are the caller's. A worker must not write into a tensor it was given (on Ray it has a copy of its own).
    """

    def __init__(self, cls_with_init: RayClassWithInitArgs, role: str = "", use_gpu: bool | None = None) -> None:
        super().__init__(cls_with_init, role or default_role(cls_with_init))
        self._home = [cls_with_init.build(WorkerInfo(role=self.role, use_gpu=use_gpu))]  # empty once shut down
        self._inner_role: str | None = None

    @property
    def world_size(self) -> int:
        return 1

    @property
    def worker(self) -> Worker:
        """The worker itself."""
        if not self._home:
            raise ValueError(f"the group of {self.role} is shut down")
        return inner_worker(self._home[0], self._inner_role)

    def _submit(self, method: str, calls: Sequence[Call], call_of_rank: Mapping[int, int]) -> WorkerFuture[list[Any]]:
        args, kwargs = calls[0]
        result = getattr(self.worker, method)(
            *(share(arg) for arg in args), **{key: share(value) for key, value in kwargs.items()}
        )
        return CompletedFuture([result])

    def _role_group(self, role: str, spec: RayClassWithInitArgs) -> Self:
        group = type(self).__new__(type(self))
        WorkerGroup.__init__(group, spec, role)
        group._home, group._inner_role = self._home, role
        return group

    def dead_ranks(self) -> list[int]:
        return [] if self._home else [0]

    def answers(self, within_s: float) -> bool:
        return bool(self._home)

    def shutdown(self) -> None:
        if self._home:
            self._home.pop().close()


def default_role(spec: RayClassWithInitArgs) -> str:
    return "+".join(colocated_roles(spec)) or spec.cls.__name__
