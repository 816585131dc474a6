from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fault_driver
import pytest

from podium.tracking import read_metrics

SOAK_LIMIT_S = 3600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A soak takes minutes where nothing else runs: its limit is there for hangs alone."""
    for item in items:
        if item.get_closest_marker("soak") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SOAK_LIMIT_S))


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, Any]]]:
    """The metrics of an unbroken run with these words, clocks aside; each run is made once."""
    known: dict[tuple[str, ...], list[dict[str, Any]]] = {}

    def metrics(*words: str) -> list[dict[str, Any]]:
        if words not in known:
            folder = tmp_path_factory.mktemp("golden") / "run"
            assert fault_driver.train(folder, *words, limit_s=3600) == 0, Path(f"{folder}.out").read_text()
            known[words] = fault_driver.without_clocks(read_metrics(folder))
        return known[words]

    return metrics
