"""What to run in a worker process: one class with its arguments, or several roles together.

Nothing is constructed here but by `build`, which runs where the worker lives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from podium.single_controller.worker import Worker, WorkerInfo, placed_at


class RayClassWithInitArgs:
    """A worker class and the arguments to make it with, for later and elsewhere."""

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        metadata = getattr(cls, "__ray_metadata__", None)  # `ray.remote(SomeWorker)` is taken as SomeWorker
        cls = cls if metadata is None else metadata.modified_class
        if not (isinstance(cls, type) and issubclass(cls, Worker)):
            raise ValueError(f"a worker class must derive from podium.single_controller.Worker, got {cls!r}")
        self.cls: type[Worker] = cls
        self.args = args
        self.kwargs = kwargs

    def build(self, info: WorkerInfo) -> Worker:
        """Make the worker, at its place."""
        with placed_at(info):
            return self.cls(*self.args, **self.kwargs)


class ColocatedWorker(Worker):
    """Several roles in one process. They share its device and its process group."""

    def __init__(self, classes: Mapping[str, RayClassWithInitArgs]) -> None:
        self.workers = {role: spec.build(replace(self.info, role=role)) for role, spec in classes.items()}

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()


def create_colocated_worker_cls(class_dict: Mapping[Any, RayClassWithInitArgs]) -> RayClassWithInitArgs:
    """Several roles in one process per GPU. `group.spawn([...])` gives the groups of the single roles."""
    if not class_dict:
        raise ValueError("create_colocated_worker_cls needs at least one role")
    return RayClassWithInitArgs(ColocatedWorker, {str(role): spec for role, spec in class_dict.items()})


def colocated_roles(spec: RayClassWithInitArgs) -> dict[str, RayClassWithInitArgs]:
    """The roles of a colocated class; none for a single one."""
    return dict(spec.args[0]) if issubclass(spec.cls, ColocatedWorker) else {}


def inner_worker(worker: Worker, role: str | None) -> Worker:
    """The worker of a role in a process; None is the process's own."""
    if role is None:
        return worker
    assert isinstance(worker, ColocatedWorker), f"{type(worker).__name__} has no roles inside"
    return worker.workers[role]
