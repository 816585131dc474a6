"""What is on each node of a Ray cluster: versions, and whether a port can be opened. One small task per node."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
from dataclasses import dataclass, field

PACKAGES = ("podium", "torch", "transformers", "ray")
SURVEY_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class NodeFacts:
    name: str
    versions: dict[str, str] = field(default_factory=dict)
    """Python and packages; `missing` where one is not installed."""
    port_error: str = ""
    """Why no port could be opened; empty when one could."""
    error: str = ""
    """Why nothing is known of the node."""


def survey() -> list[NodeFacts]:
    """The facts of every alive node of the cluster that this process is connected to."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(num_cpus=0)(look_around)
    asked = []
    for node in ray.nodes():
        if node["Alive"]:
            here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked.append((str(node["NodeManagerAddress"]), look.options(scheduling_strategy=here).remote()))
    facts = []
    for name, answer in asked:
        try:
            facts.append(NodeFacts(name, *ray.get(answer, timeout=SURVEY_TIMEOUT_S)))
        except ray.exceptions.RayError as error:
            facts.append(NodeFacts(name, error=str(error).splitlines()[0]))
    return facts


def look_around() -> tuple[dict[str, str], str]:
    """(versions, why no port could be opened) of the machine this runs on."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "missing"
    try:
        with socket.socket() as listening:
            listening.bind(("", 0))
    except OSError as error:
        return versions, str(error)
    return versions, ""
