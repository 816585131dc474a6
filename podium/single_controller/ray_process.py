"""The inside of a Ray worker process: makes the worker, unpacks calls, packs results.

What a worker raises does not leave as an exception: it is returned as a `Failure`, so that the controller can show it
without Ray's wrapping. Batches travel in their padding-free wire form.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from podium.single_controller.colocate import inner_worker
from podium.single_controller.logs import open_worker_log
from podium.single_controller.rendezvous import hold_port

if TYPE_CHECKING:
    from podium.single_controller.worker import Worker, WorkerInfo


@dataclass(frozen=True)
class Placement:
    """Where a worker process runs."""

    node_id: str
    address: str
    pid: int
    log_path: str | None


@dataclass(frozen=True)
class Failure:
    """What a worker raised."""

    cause: str
    traceback: str
    time_s: float


def pack(value: Any) -> Any:
    """Batches in their wire form, inside tuples, lists and dicts too."""
    if type(value) in (tuple, list):
        return type(value)(pack(item) for item in value)
    if type(value) is dict:
        return {key: pack(item) for key, item in value.items()}
    return value.to_wire() if _is_a(value, "podium.protocol", "DataProto") else value


def unpack(value: Any) -> Any:
    if type(value) in (tuple, list):
        return type(value)(unpack(item) for item in value)
    if type(value) is dict:
        return {key: unpack(item) for key, item in value.items()}
    if is_wire(value):
        from podium.protocol import DataProto

        return DataProto.from_wire(value)
    return value


def is_wire(value: Any) -> bool:
    return _is_a(value, "podium.wire", "Wire")


def _is_a(value: Any, module: str, name: str) -> bool:
    """isinstance, without importing the module: where it is not imported there is no such value."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name))


class WorkerProcess:
    """The Ray actor. Its methods run one after the other in the process's main thread."""

    def __init__(self, log_path: str | None, paths: list[str]) -> None:
        self._log_path = open_worker_log(log_path)
        self._worker: Worker | None = None
        sys.path.extend(path for path in paths if path not in sys.path)

    def describe(self) -> Placement:
        import ray

        context = ray.get_runtime_context()
        return Placement(context.get_node_id(), ray.util.get_node_ip_address(), os.getpid(), self._log_path)

    def hold_port(self, address: str) -> int:
        return hold_port(address)

    def start(self, spec: bytes, info: WorkerInfo, num_threads: int | None) -> Failure | None:
        """Make the worker. The class travels as bytes so that an import that fails here is reported like the rest."""
        os.environ |= {
            "RANK": str(info.rank),
            "WORLD_SIZE": str(info.world_size),
            "LOCAL_RANK": str(info.local_rank),
            "LOCAL_WORLD_SIZE": str(info.local_world_size),
            "MASTER_ADDR": info.master_addr,
            "MASTER_PORT": str(info.master_port),
        }
        try:
            _set_threads(num_threads or max(1, _num_cores() // info.local_world_size))
            self._worker = pickle.loads(spec).build(info)
        except Exception as error:  # noqa: BLE001  a fault boundary: the controller raises it
            return _failure(error)
        return None

    def invoke(self, role: str | None, method: str, num_args: int, names: tuple[str, ...], *values: Any) -> Any:
        """Call the worker's method. Values are the positional arguments, then those of `names`."""
        try:
            assert self._worker is not None, "the worker was not started"
            function = getattr(inner_worker(self._worker, role), method)
            given = [unpack(value) for value in values]
            return pack(function(*given[:num_args], **dict(zip(names, given[num_args:], strict=True))))
        except (SystemExit, KeyboardInterrupt):  # this process is to end
            raise
        except BaseException as error:  # noqa: BLE001  a fault boundary: the controller raises it
            return _failure(error)

    def ping(self) -> None:
        """An answer proves life."""

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()


def _failure(error: BaseException) -> Failure:
    frames = error.__traceback__.tb_next if error.__traceback__ is not None else None  # without this file's own frame
    text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    sys.stderr.write(text)
    return Failure(f"{type(error).__name__}: {error}", text, time.time())


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _set_threads(num_threads: int) -> None:
    """For this process and a torch that is imported later."""
    os.environ["OMP_NUM_THREADS"] = str(num_threads)
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(num_threads)
