"""Resource pools: which workers get which part of which node.

A pool is one placement group per node, one bundle per worker. Whether the cluster has the room is computed before
anything is asked of it (`preflight`; the arithmetic is in room.py). It does not start workers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from podium.errors import ConfigError, ResourceError
from podium.single_controller.roles import Role
from podium.single_controller.room import Ask, arithmetic, check_room, cluster_room
from podium.single_controller.runtime import ensure_ray

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

DEFAULT_COLOCATE_COUNT = 3


@dataclass(frozen=True, eq=False)
class Lease:
    """One group's stay in a pool: the placement group and bundle of each rank."""

    bundles: list[tuple[PlacementGroup, int]]


class RayResourcePool:
    """Room for `process_on_nodes[i]` workers on the i-th node, and up to `max_colocate_count` groups side by side."""

    def __init__(
        self,
        process_on_nodes: Sequence[int],
        use_gpu: bool = False,
        max_colocate_count: int = 1,
        name_prefix: str = "pool",
        gpus_per_worker: int = 1,
    ) -> None:
        if not process_on_nodes or any(count < 1 for count in process_on_nodes):
            raise ConfigError(f"pool {name_prefix!r} needs at least one worker per node, got {list(process_on_nodes)}")
        if max_colocate_count < 1:
            raise ConfigError(
                f"max_colocate_count of pool {name_prefix!r} must be at least 1, got {max_colocate_count}"
            )
        self.process_on_nodes = list(process_on_nodes)
        self.use_gpu = use_gpu
        self.max_colocate_count = max_colocate_count
        self.name_prefix = name_prefix
        self.gpus_per_worker = gpus_per_worker
        """Of a worker whose engine spreads over several; then no second group fits beside it."""
        self._placement_groups: list[PlacementGroup] = []
        self._leases: set[Lease] = set()
        self._lock = threading.RLock()  # groups may start side by side

    @property
    def world_size(self) -> int:
        return sum(self.process_on_nodes)

    @property
    def bundle(self) -> dict[str, float]:
        """What the workers of one GPU (or of one CPU slot) share."""
        return {"CPU": 1.0, "GPU": float(self.gpus_per_worker)} if self.use_gpu else {"CPU": 1.0}

    def asks(self) -> list[Ask]:
        """What is still to be taken from the cluster."""
        if self._placement_groups:
            return []
        return [Ask(self.name_prefix, count, self.bundle) for count in self.process_on_nodes]

    def acquire(self, timeout_s: float) -> Lease:
        """Room for one group, until `release`."""
        with self._lock:
            if len(self._leases) >= self.max_colocate_count:
                raise ResourceError(
                    f"pool {self.name_prefix!r} already holds {len(self._leases)} worker group(s), its "
                    "max_colocate_count; raise it, put the roles into one class with create_colocated_worker_cls, "
                    "or use another pool"
                )
            if not self._placement_groups:
                self._place(timeout_s)
            lease = Lease([(group, index) for group in self._placement_groups for index in range(group.bundle_count)])
            self._leases.add(lease)
            return lease

    def release(self, lease: Lease) -> None:
        """A group is gone; the last one gives the room back."""
        with self._lock:
            if lease in self._leases:
                self._leases.remove(lease)
                if not self._leases:
                    self.shutdown()

    def shutdown(self) -> None:
        """Give the room back; what still runs there is killed by Ray."""
        import ray
        from ray.util.placement_group import remove_placement_group

        groups, self._placement_groups = self._placement_groups, []
        self._leases.clear()
        if ray.is_initialized():
            for group in groups:
                remove_placement_group(group)

    def _place(self, timeout_s: float) -> None:
        from ray.util.placement_group import placement_group

        ensure_ray()
        check_room(self.asks())
        deadline = time.monotonic() + timeout_s
        self._placement_groups = [
            placement_group([dict(self.bundle)] * count, strategy="STRICT_PACK", name=f"{self.name_prefix}:{node}")
            for node, count in enumerate(self.process_on_nodes)
        ]
        if not all(group.wait(max(0.0, deadline - time.monotonic())) for group in self._placement_groups):
            asks = [Ask(self.name_prefix, count, self.bundle) for count in self.process_on_nodes]
            self.shutdown()
            raise ResourceError(
                f"Ray did not give pool {self.name_prefix!r} its room within {timeout_s:g} s\n"
                + "\n".join(arithmetic(asks, cluster_room()))
            )


@dataclass
class ResourcePoolManager:
    """Which pools there are (workers per node of each) and which role lives in which pool."""

    resource_pool_spec: dict[str, list[int]]
    mapping: Mapping[Role, str]
    use_gpu: bool | None = None
    """Null: when a node of the cluster has GPUs."""
    max_colocate_count: int = DEFAULT_COLOCATE_COUNT
    """Worker groups that may share a pool."""
    gpus_per_worker: Mapping[str, int] = field(default_factory=dict)
    """Of a pool's workers, where that is more than one."""
    resource_pool_dict: dict[str, RayResourcePool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for role, pool in self.mapping.items():
            if pool not in self.resource_pool_spec:
                known = sorted(self.resource_pool_spec)
                raise ConfigError(f"role {str(role)!r} is mapped to pool {pool!r}, which is not one of {known}")

    def create_resource_pool(self) -> None:
        """Make the pools, after a check that the cluster has room for all of them."""
        self.preflight()
        self._make_pools()

    def get_resource_pool(self, role: Role) -> RayResourcePool:
        if role not in self.mapping:
            raise ConfigError(
                f"role {str(role)!r} has no pool; the mapping has {sorted(str(known) for known in self.mapping)}"
            )
        if not self.resource_pool_dict:
            self.create_resource_pool()
        return self.resource_pool_dict[self.mapping[role]]

    def get_n_gpus(self) -> int:
        """The workers of all pools: one per GPU, or CPU processes."""
        return sum(sum(counts) for counts in self.resource_pool_spec.values())

    def preflight(self) -> None:
        """Raise ResourceError, without waiting, when the cluster cannot hold what is asked."""
        ensure_ray()
        self._make_pools()
        check_room([ask for pool in self.resource_pool_dict.values() for ask in pool.asks()])

    def shutdown(self) -> None:
        """Give all room back."""
        for pool in self.resource_pool_dict.values():
            pool.shutdown()

    def _make_pools(self) -> None:
        if self.resource_pool_dict:
            return
        use_gpu = any(node.total["GPU"] for node in cluster_room()) if self.use_gpu is None else self.use_gpu
        for name, counts in self.resource_pool_spec.items():
            gpus = self.gpus_per_worker.get(name, 1)
            groups = self.max_colocate_count if gpus == 1 else 1  # Ray shares out single GPUs only
            self.resource_pool_dict[name] = RayResourcePool(counts, use_gpu, groups, name, gpus)
