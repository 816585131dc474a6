"""Hosted engines around the toy backend, ended after their tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from toy_engine import TinyModule, start

from podium.engines.rollout.hosted import HostedEngine

MakeEngine = Callable[..., HostedEngine]


@pytest.fixture
def module() -> TinyModule:
    return TinyModule()


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    made: list[HostedEngine] = []

    def make(**settings: Any) -> HostedEngine:
        made.append(start(**settings))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[HostedEngine]:
    """One that does nothing wrong, for all tests that need no more."""
    engine = start()
    yield engine
    engine.close()
