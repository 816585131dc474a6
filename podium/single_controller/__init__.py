"""The controller's side of the run: resource pools, worker groups and how a call reaches a worker.

Names load on first use, so that a worker class may import `register` and `Worker` without importing ray, and a run in
one process never imports it at all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from podium.single_controller.colocate import RayClassWithInitArgs, create_colocated_worker_cls
    from podium.single_controller.dispatch import Dispatch, register
    from podium.single_controller.futures import CompletedFuture, WorkerFuture
    from podium.single_controller.group import LocalWorkerGroup, WorkerGroup
    from podium.single_controller.pools import RayResourcePool, ResourcePoolManager
    from podium.single_controller.ray_group import RayWorkerGroup
    from podium.single_controller.roles import Role
    from podium.single_controller.runtime import dashboard_address, ensure_ray, shutdown_ray
    from podium.single_controller.worker import DataParallel, Worker, WorkerInfo

_PUBLIC = {
    "CompletedFuture": "futures",
    "DataParallel": "worker",
    "Dispatch": "dispatch",
    "LocalWorkerGroup": "group",
    "RayClassWithInitArgs": "colocate",
    "RayResourcePool": "pools",
    "RayWorkerGroup": "ray_group",
    "ResourcePoolManager": "pools",
    "Role": "roles",
    "Worker": "worker",
    "WorkerFuture": "futures",
    "WorkerGroup": "group",
    "WorkerInfo": "worker",
    "create_colocated_worker_cls": "colocate",
    "dashboard_address": "runtime",
    "ensure_ray": "runtime",
    "register": "dispatch",
    "shutdown_ray": "runtime",
}

__all__ = [
    "CompletedFuture",
    "DataParallel",
    "Dispatch",
    "LocalWorkerGroup",
    "RayClassWithInitArgs",
    "RayResourcePool",
    "RayWorkerGroup",
    "ResourcePoolManager",
    "Role",
    "Worker",
    "WorkerFuture",
    "WorkerGroup",
    "WorkerInfo",
    "create_colocated_worker_cls",
    "dashboard_address",
    "ensure_ray",
    "register",
    "shutdown_ray",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"podium.single_controller.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'podium.single_controller' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
