"""Pools: the arithmetic of room, and giving it back."""

from __future__ import annotations

import os
import signal
import socket
import time
from types import SimpleNamespace

import pytest
import ray
from controller_light import Light
from ray.util.placement_group import placement_group_table

from podium.errors import ConfigError, ResourceError
from podium.single_controller import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    ResourcePoolManager,
    Role,
    room,
)
from podium.single_controller.room import Ask, NodeRoom, cluster_room, shortage, unplaced
from podium.single_controller.runtime import _sigterm_handler_kept, ensure_ray

LIMIT_S = 300.0
"""Far above what anything here takes; only a hang comes near it."""


def free_cpus() -> float:
    return sum(node.free["CPU"] for node in cluster_room())


def settled_free_cpus() -> float:
    """Free CPUs once Ray has counted what groups before this one gave back."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        free, total = free_cpus(), sum(node.total["CPU"] for node in cluster_room())
        groups = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
        held = sum(bundle.get("CPU", 0.0) for group in groups for bundle in group["bundles"].values())
        if free == total - held:
            return free
        assert time.monotonic() < deadline, f"{free} free, {held} held of {total}"
        time.sleep(0.05)


def gpu_node(name: str, gpus: float, free: float | None = None) -> NodeRoom:
    return NodeRoom(name, {"CPU": 64, "GPU": gpus}, {"CPU": 64, "GPU": gpus if free is None else free})


def gpu_ask(count: int, pool: str = "all") -> Ask:
    return Ask(pool, count, {"CPU": 1.0, "GPU": 1.0})


def test_asks_are_laid_onto_nodes_the_largest_first() -> None:
    nodes = [gpu_node("a", 4).free, gpu_node("b", 8).free]
    assert unplaced([gpu_ask(4), gpu_ask(8)], nodes) == []
    assert unplaced([gpu_ask(6), gpu_ask(6)], nodes) == [gpu_ask(6)]
    assert unplaced([gpu_ask(4, "x"), gpu_ask(4, "y"), gpu_ask(4, "z")], nodes) == []


@pytest.mark.parametrize(
    ("asks", "nodes", "is_busy", "fix"),
    [
        ([gpu_ask(8)], [gpu_node("a", 4)], False, "set trainer.n_gpus_per_node to at most 4"),
        ([gpu_ask(8)], [gpu_node("a", 0)], False, "set trainer.device=cpu"),
        ([gpu_ask(8), gpu_ask(8)], [gpu_node("a", 8)], False, "set trainer.nnodes lower"),
        ([gpu_ask(8)], [gpu_node("a", 8, free=3)], True, "end what holds the rest"),
        ([gpu_ask(96)], [gpu_node("a", 128)], False, "at most 64, or start Ray with more logical CPUs"),
    ],
)
def test_the_message_shows_asked_there_missing_and_a_fix_that_fits(
    asks: list[Ask], nodes: list[NodeRoom], is_busy: bool, fix: str
) -> None:
    rooms = [node.free if is_busy else node.total for node in nodes]
    text = shortage(asks, nodes, unplaced(asks, rooms), is_busy)
    assert f"asked: pool 'all': {asks[0].num_workers} workers on one node" in text
    assert f"there: node a: 64 CPUs (64 free), {nodes[0].total['GPU']:g} GPUs ({nodes[0].free['GPU']:g} free)" in text
    assert fix in text.splitlines()[-1]


def test_preflight_fails_at_once_with_the_arithmetic(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        pytest.fail("it waits for room that will never be there")

    monkeypatch.setattr(room, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    manager = ResourcePoolManager({"global_pool": [12], "rm_pool": [1]}, {Role.ActorRollout: "global_pool"})
    with pytest.raises(ResourceError) as caught:
        manager.create_resource_pool()
    message = str(caught.value)
    assert "asked: pool 'global_pool': 12 workers on one node = 12 CPUs" in message
    assert "8 CPUs (" in message and "0 GPUs (0 free)" in message
    assert "missing: 12 CPUs together on one node for pool 'global_pool'" in message
    assert "at most 8" in message


def test_asking_for_gpus_where_there_are_none_fails_at_once(cluster: None) -> None:
    manager = ResourcePoolManager({"all": [1]}, {Role.Actor: "all"}, use_gpu=True)
    with pytest.raises(ResourceError, match=r"trainer\.device=cpu"):
        manager.preflight()


def test_a_manager_makes_the_pool_of_each_role(cluster: None) -> None:
    manager = ResourcePoolManager(
        {"a": [1, 1], "b": [1]}, {Role.ActorRollout: "a", Role.Critic: "a", Role.RefPolicy: "b"}
    )
    manager.create_resource_pool()
    assert manager.get_n_gpus() == 3
    assert manager.get_resource_pool(Role.Critic) is manager.get_resource_pool(Role.ActorRollout)
    assert manager.get_resource_pool(Role.RefPolicy).world_size == 1
    assert not manager.get_resource_pool(Role.RefPolicy).use_gpu
    with pytest.raises(
        ConfigError, match=r"role 'rm' has no pool; the mapping has \['actor_rollout', 'critic', 'ref'\]"
    ):
        manager.get_resource_pool(Role.RewardModel)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"mapped to pool 'b', which is not one of \['a'\]"):
        ResourcePoolManager({"a": [1]}, {Role.Actor: "b"})
    with pytest.raises(ConfigError, match="at least one worker per node"):
        RayResourcePool([2, 0])


def test_the_last_group_gives_the_room_back_and_another_can_take_it(cluster: None) -> None:
    before = settled_free_cpus()
    pool = RayResourcePool([1], max_colocate_count=2, name_prefix="shared")
    groups = [RayWorkerGroup(pool, RayClassWithInitArgs(Light), f"g{i}", start_timeout_s=LIMIT_S) for i in range(2)]
    with pytest.raises(ResourceError, match=r"pool 'shared' already holds 2 worker group\(s\)"):
        RayWorkerGroup(pool, RayClassWithInitArgs(Light), "one too many")
    pids = [group.placements[0].pid for group in groups]
    for group in groups:
        group.shutdown()
    assert settled_free_cpus() == before
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            signal_until_gone(pid)


def signal_until_gone(pid: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        os.kill(pid, 0)
        time.sleep(0.05)


def test_our_own_ray_is_reachable_from_this_machine_only(cluster: None) -> None:
    [node] = ray.nodes()
    assert node["NodeManagerAddress"] == "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; tells the outward address
        except OSError:
            pytest.skip("this machine has no outward address")
        outward = probe.getsockname()[0]
    for port in (node["NodeManagerPort"], node["ObjectManagerPort"]):
        with pytest.raises(OSError), socket.create_connection((outward, port), timeout=2):
            pass


def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")

    def refuse(**settings: object) -> None:
        assert settings["address"] == "127.0.0.1:1"
        raise ConnectionError("refused")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ResourceError, match=r"no Ray cluster answers at RAY_ADDRESS=127.0.0.1:1: refused"):
        ensure_ray()


def test_a_handler_of_sigterm_survives_the_start_of_ray() -> None:
    original = signal.getsignal(signal.SIGTERM)

    def ours(*_: object) -> None: ...

    try:
        signal.signal(signal.SIGTERM, ours)
        with _sigterm_handler_kept():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert signal.getsignal(signal.SIGTERM) is ours
    finally:
        signal.signal(signal.SIGTERM, original)
