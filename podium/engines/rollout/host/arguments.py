"""An engine's arguments: what Podium sets, its defaults, and the user's `rollout.engine_kwargs`, names checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from podium.plugins import closest


def merged(
    engine: str,
    known: Collection[str],
    ours: Mapping[str, Any],
    defaults: Mapping[str, Any],
    given: Mapping[str, Any],
    taken: Mapping[str, str],
) -> dict[str, Any]:
    """All arguments together. `taken` has the setting to use instead of an argument that Podium sets itself."""
    for name in given:
        if name in taken:
            instead = f"use {taken[name]}" if taken[name] else "Podium needs it as it is"
            raise ValueError(f"rollout.engine_kwargs.{name} is Podium's to set; {instead}.")
        if name not in known:
            near = closest(name, known)
            hint = f"did you mean {near}?" if near else f"see the engine arguments of {engine}'s documentation."
            raise ValueError(f"rollout.engine_kwargs.{name} is not an argument of {engine}; {hint}")
    return {name: value for name, value in {**defaults, **ours}.items() if name in known} | dict(given)
