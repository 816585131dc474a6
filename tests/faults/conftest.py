from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fault_driver
import pytest

from podium.tracking import read_metrics


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, Any]]]:
    """The metrics of an unbroken run with these words, clocks aside; each run is made once."""
    known: dict[tuple[str, ...], list[dict[str, Any]]] = {}

    def metrics(*words: str) -> list[dict[str, Any]]:
        if words not in known:
            folder = tmp_path_factory.mktemp("golden") / "run"
            assert fault_driver.train(folder, *words, limit_s=900) == 0, Path(f"{folder}.out").read_text()
            known[words] = fault_driver.without_clocks(read_metrics(folder))
        return known[words]

    return metrics
