"""The inside of a worker process, looked at from inside this one."""

from __future__ import annotations

import os
import pickle
from typing import Any

import pytest
from controller_light import Light
from controller_toys import make_batch

from podium.protocol import DataProto
from podium.single_controller import RayClassWithInitArgs, WorkerInfo, ray_process
from podium.single_controller.ray_process import Failure, WorkerProcess, is_wire, pack, unpack


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> WorkerProcess:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    process = WorkerProcess.__new__(WorkerProcess)
    process._worker = None
    return process


def test_batches_travel_without_padding_wherever_they_are() -> None:
    value: Any = {"pair": (make_batch(2), [make_batch(1), "text"]), "number": 3}
    packed = pack(value)
    assert is_wire(packed["pair"][0]) and is_wire(packed["pair"][1][0])
    back = unpack(pickle.loads(pickle.dumps(packed)))
    assert isinstance(back["pair"][0], DataProto)
    assert back["pair"][0].batch["x"].tolist() == value["pair"][0].batch["x"].tolist()
    assert (back["pair"][1][1], back["number"]) == ("text", 3)


@pytest.mark.parametrize(("asked", "expected"), [(None, 2), (5, 5)])
def test_the_workers_of_a_node_share_its_cores(
    process: WorkerProcess, monkeypatch: pytest.MonkeyPatch, asked: int | None, expected: int
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(ray_process, "_num_cores", lambda: 8)
    monkeypatch.setattr(ray_process, "_set_threads", threads.append)
    info = WorkerInfo(rank=4, world_size=6, local_rank=1, local_world_size=3, master_port=1234)
    assert process.start(pickle.dumps(RayClassWithInitArgs(Light)), info, asked) is None
    assert threads == [expected]
    assert process.invoke(None, "environment", 2, (), "RANK", "MASTER_PORT") == {"RANK": "4", "MASTER_PORT": "1234"}


def test_a_class_that_cannot_be_imported_is_a_failure_like_any_other(process: WorkerProcess) -> None:
    spec = pickle.dumps(RayClassWithInitArgs(Light)).replace(b"controller_light", b"controller_lacks")
    failure = process.start(spec, WorkerInfo(), None)
    assert isinstance(failure, Failure)
    assert failure.cause == "ModuleNotFoundError: No module named 'controller_lacks'"
