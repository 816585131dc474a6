"""One Ray for the tests of a file, with eight logical CPUs on whatever machine this is.

It ends with the file: tests elsewhere start a Ray of their own in the same process, and end it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from controller_toys import Toy

from podium.single_controller import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, ensure_ray, shutdown_ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ensure_ray(num_cpus=8)
    yield
    shutdown_ray()


@pytest.fixture(scope="session")
def logs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker_logs")


@pytest.fixture(scope="module")
def pair(cluster: None, logs_folder: Path) -> Iterator[RayWorkerGroup]:
    """Two healthy workers that several tests share; a test that hurts workers makes its own."""
    group = RayWorkerGroup(
        RayResourcePool([2], max_colocate_count=4, name_prefix="pair"),
        RayClassWithInitArgs(Toy, scale=2),
        name_prefix="toy",
        start_timeout_s=600,
        call_timeout_s=300,
        env_vars={"PODIUM_WORKER_LOGS": str(logs_folder), "TOY_SETTING": "given"},
    )
    yield group
    group.shutdown()
