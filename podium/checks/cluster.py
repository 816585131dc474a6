"""The machines of a run: devices, room for the workers, versions, ports, disk. No worker is started.

Without `RAY_ADDRESS` the run has this machine alone, and what it has is asked of it directly. A Ray cluster is asked
for its nodes.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
from pathlib import Path

from podium.checks.findings import Findings, note, ok, problem
from podium.config.resolve import num_workers
from podium.config.schema import Config
from podium.errors import PodiumError
from podium.single_controller.survey import NodeFacts, look_around

TESTED = {"torch": ((2, 11), (2, 14)), "transformers": ((5, 16), (5, 20)), "ray": ((2, 52), (3, 0))}


def check_versions() -> Findings:
    found = []
    for name, (low, high) in TESTED.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield problem("versions", f"{name} is not installed", "pip install -c constraints.txt -e .")
            continue
        found.append(f"{name} {version}")
        numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
        if not low <= numbers < high:
            fix = f"install {name}>={low[0]}.{low[1]},<{high[0]}.{high[1]}, which Podium is tested with"
            yield note("versions", f"{name} {version} is outside what Podium is tested with", fix)
    yield ok("versions", f"Python {platform.python_version()}, {', '.join(found)}")


def check_room(config: Config) -> Findings:
    """Are there devices and slots for the workers?"""
    if os.environ.get("RAY_ADDRESS") and config.trainer.runtime == "ray":
        yield from _ask_ray(config)
    else:
        yield from _ask_here(config)


def _ask_here(config: Config) -> Findings:
    import torch

    trainer, workers = config.trainer, num_workers(config)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cpus = os.cpu_count() or 1
    if trainer.device == "cuda" and not gpus:
        yield problem("cluster", "trainer.device=cuda, but torch sees no GPU here", "set trainer.device=auto or cpu")
        return
    if trainer.nnodes > 1:
        fix = "start Ray on the nodes (ray start) and set RAY_ADDRESS, or set trainer.nnodes=1"
        yield problem(
            "cluster", f"trainer.nnodes={trainer.nnodes}, and no cluster is named: RAY_ADDRESS is not set", fix
        )
        return
    on_gpu = trainer.device != "cpu" and gpus > 0
    there, kind = (gpus, "GPUs") if on_gpu else (cpus, "CPUs")
    if workers > there:
        fix = f"set trainer.n_gpus_per_node={there}" + ("" if on_gpu else ", or run where there are GPUs")
        yield problem("cluster", f"{workers} workers are asked for, this machine has {there} {kind}", fix)
        return
    yield ok("cluster", f"this machine: {gpus} GPUs, {cpus} CPUs; {workers} worker(s), runtime {trainer.runtime}")


def _ask_ray(config: Config) -> Findings:
    from podium.single_controller.room import cluster_room
    from podium.single_controller.runtime import shutdown_ray
    from podium.single_controller.survey import survey
    from podium.trainer.main_ppo import make_pools

    try:
        device = "cpu" if config.trainer.device == "cpu" else "cuda"
        make_pools(config, device).preflight()
        for node in cluster_room():
            has = ", ".join(f"{node.total[kind]:g} {kind}s ({node.free[kind]:g} free)" for kind in ("GPU", "CPU"))
            yield ok("cluster", f"node {node.name}: {has}")
        yield from compare_nodes(survey())
    except PodiumError as error:
        yield problem("cluster", str(error), "see above, or ask for less")
    finally:
        shutdown_ray()


def compare_nodes(nodes: list[NodeFacts]) -> Findings:
    """Every node must answer, open ports, and have the versions of this machine."""
    mine, _ = look_around()
    for node in nodes:
        if node.error:
            yield problem("cluster", f"node {node.name} does not answer: {node.error}", "look at its Ray logs")
            continue
        other = {name: version for name, version in node.versions.items() if version != mine.get(name)}
        if other:
            said = ", ".join(f"{name} {version} (here {mine.get(name)})" for name, version in other.items())
            fix = "install the same on every node: pip install -c constraints.txt -e ."
            yield problem("cluster", f"node {node.name} has {said}", fix)
        if node.port_error:
            yield problem("cluster", f"node {node.name} cannot open a port: {node.port_error}", "let workers listen")
        if not other and not node.port_error:
            yield ok("cluster", f"node {node.name}: the same versions as here; ports can be opened")


def check_ports() -> Findings:
    """Workers of a run find each other through a socket on this machine."""
    try:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            with socket.create_connection(listening.getsockname(), timeout=2):
                yield ok("cluster", "ports can be opened and reached on this machine")
    except OSError as error:
        yield problem("cluster", f"a port on 127.0.0.1 cannot be used: {error}", "let this process open local sockets")


def check_folder(config: Config, model_gb: float) -> Findings:
    """Can the run folder be written, and does a checkpoint fit?"""
    folder = Path(config.trainer.default_local_dir).absolute()
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        yield problem("disk", f"{folder} cannot be written", "set trainer.default_local_dir to a folder of yours")
        return
    free_gb = shutil.disk_usage(parent).free / (1 << 30)
    roles = 1 + bool(config.critic.enable)
    keep = config.trainer.max_ckpt_to_keep or 1
    needs = (keep + 1) * (model_gb * 12 * roles + model_gb * 4)  # float32 weights and two moments, and the HF folder
    if config.trainer.save_freq != 0 and needs > free_gb:
        fix = (
            "free some, set trainer.default_local_dir elsewhere, trainer.max_ckpt_to_keep lower, or trainer.save_freq=0"
        )
        yield problem("disk", f"checkpoints take about {needs:.1f} GB, {parent} has {free_gb:.1f} GB free", fix)
    else:
        yield ok("disk", f"{parent} has {free_gb:.1f} GB free; checkpoints take about {needs:.2f} GB at a time")
    if config.trainer.nnodes > 1 and config.trainer.save_freq != 0:
        text = f"trainer.nnodes={config.trainer.nnodes}: each rank writes its own part of a checkpoint into {folder}"
        yield note("disk", text, "let trainer.default_local_dir be on a disk that all nodes see")
