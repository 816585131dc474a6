"""Kernels run on a CUDA device, or in Triton's interpreter on a CPU (TRITON_INTERPRET=1), or are skipped."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and not torch.cuda.is_available()
CAN_RUN = importlib.util.find_spec("triton") is not None and (torch.cuda.is_available() or INTERPRETED)

if not CAN_RUN:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")
