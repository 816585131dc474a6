from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard_runs import write_run
from starlette.testclient import TestClient

from podium.dashboard.server import make_app


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A runs folder with two finished runs."""
    write_run(tmp_path / "runs" / "podium" / "one", steps=10)
    write_run(tmp_path / "runs" / "podium" / "two", steps=20, seed=1)
    return tmp_path / "runs"


@pytest.fixture
def client(runs: Path) -> Iterator[TestClient]:
    with TestClient(make_app(runs), base_url="http://127.0.0.1") as client:
        yield client
