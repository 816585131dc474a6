"""Ray's own dashboard is off, on loopback when it is asked for, and refused with the cure where it is not installed."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import ray

from podium.errors import ResourceError
from podium.single_controller import runtime


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **words: calls.append(words))
    monkeypatch.setattr(runtime, "_started", [])
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return calls


def test_it_is_off_unless_asked_for(started: list[dict[str, Any]]) -> None:
    runtime.ensure_ray()
    assert started[0]["include_dashboard"] is False


def test_it_listens_on_loopback(started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_check_dashboard", lambda: None)
    runtime.ensure_ray(dashboard=True)
    assert (started[0]["include_dashboard"], started[0]["dashboard_host"]) == (True, "127.0.0.1")


def test_where_it_is_not_installed(started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "ray.dashboard.optional_deps", raising=False)
    with pytest.raises(ResourceError, match=r"no aiohttp.*ray\[default\]"):
        runtime.ensure_ray(dashboard=True)
    assert not started
