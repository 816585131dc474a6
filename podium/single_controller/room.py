"""The arithmetic of room: what pools ask, what nodes have, and the words for what is missing.

Workers that must be together on a node are one `Ask`. Asks are laid onto nodes, the largest first; Ray is not asked to
reserve anything.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from podium.errors import ResourceError

RELEASE_DELAY_S = 15.0  # how long Ray may take to count what was just given back, on a busy machine


@dataclass(frozen=True)
class NodeRoom:
    """What a node has in all and what of it is free, of "CPU" and "GPU"."""

    name: str
    total: dict[str, float]
    free: dict[str, float]


@dataclass(frozen=True)
class Ask:
    """Workers that must be together on one node."""

    pool: str
    num_workers: int
    bundle: dict[str, float]  # what one worker takes

    def needs(self, kind: str) -> float:
        return self.num_workers * self.bundle.get(kind, 0)


def cluster_room() -> list[NodeRoom]:
    """The alive nodes of the cluster."""
    import ray
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    nodes: list[dict[str, Any]] = [node for node in ray.nodes() if node["Alive"]]
    return [
        NodeRoom(
            f"{node['NodeManagerAddress']} ({node['NodeManagerHostname']})",
            {kind: float(node["Resources"].get(kind, 0)) for kind in ("CPU", "GPU")},
            {kind: float(free.get(node["NodeID"], {}).get(kind, 0)) for kind in ("CPU", "GPU")},
        )
        for node in nodes
    ]


def check_room(asks: Sequence[Ask]) -> None:
    """Raise ResourceError when the cluster cannot hold what is asked.

    At once when it never could. When it could but for what others hold, it looks again for a moment first: what a group
    gave back just now takes Ray some time to count.
    """
    deadline = time.monotonic() + RELEASE_DELAY_S
    while True:
        room = cluster_room()
        homeless = unplaced(asks, [node.free for node in room])
        if not homeless:
            return
        never = unplaced(asks, [node.total for node in room])
        if never or time.monotonic() > deadline:
            raise ResourceError(shortage(asks, room, never or homeless, is_busy=not never))
        time.sleep(0.05)


def unplaced(asks: Sequence[Ask], rooms: Sequence[Mapping[str, float]]) -> list[Ask]:
    """The asks that find no node, largest first onto the first node that has room."""
    left = [dict(room) for room in rooms]
    homeless = []
    for ask in sorted(asks, key=lambda ask: (ask.needs("GPU"), ask.needs("CPU")), reverse=True):
        home = next((room for room in left if all(room[kind] >= ask.needs(kind) for kind in ask.bundle)), None)
        if home is None:
            homeless.append(ask)
            continue
        for kind in ask.bundle:
            home[kind] -= ask.needs(kind)
    return homeless


def shortage(asks: Sequence[Ask], room: Sequence[NodeRoom], homeless: Sequence[Ask], is_busy: bool) -> str:
    """The message: asked, there, missing, and the fix."""
    first = homeless[0]
    most = {
        kind: max((int((node.free if is_busy else node.total)[kind]) for node in room), default=0)
        for kind in first.bundle
    }
    short = [kind for kind in first.bundle if most[kind] < first.needs(kind)]  # empty: other pools took the room
    kind = "GPU" if "GPU" in (short or first.bundle) else "CPU"
    lines = ["the cluster cannot hold the run's workers", *arithmetic(asks, room)]
    for ask in homeless:
        rest = "" if short else " after the other pools"
        lines.append(
            f"  missing: {_amount(ask)} together on one node for pool {ask.pool!r}; no node has that{rest}"
            f" (the most {kind}s {'free ' if is_busy else ''}on one node: {most[kind]})"
        )
    return "\n".join([*lines, "fix: " + _fix(kind, most[kind], bool(short), is_busy)])


def _fix(kind: str, most: int, is_too_large: bool, is_busy: bool) -> str:
    if is_busy:
        return "end what holds the rest, or ask for less (trainer.n_gpus_per_node, trainer.nnodes)"
    if kind == "GPU" and not most:
        return "run where there are GPUs, or set trainer.device=cpu"
    more = ", or start Ray with more logical CPUs (`ray start --head --num-cpus=N`)" if kind == "CPU" else ""
    if is_too_large:
        return f"set trainer.n_gpus_per_node to at most {most}{more}"
    return f"set trainer.nnodes lower, use fewer pools, or add nodes{more}"


def arithmetic(asks: Sequence[Ask], room: Sequence[NodeRoom]) -> list[str]:
    """What is asked and what is there, line by line."""
    lines = [f"  asked: pool {ask.pool!r}: {ask.num_workers} workers on one node = {_amount(ask)}" for ask in asks]
    for node in room:
        has = ", ".join(f"{node.total[kind]:g} {kind}s ({node.free[kind]:g} free)" for kind in ("CPU", "GPU"))
        lines.append(f"  there: node {node.name}: {has}")
    return lines


def _amount(ask: Ask) -> str:
    return " and ".join(f"{ask.needs(kind):g} {kind}s" for kind in ask.bundle)
