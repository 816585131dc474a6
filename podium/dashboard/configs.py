"""config.yaml as a flat table of dotted keys, which is what people compare. It understands no setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 1 << 20
MAX_KEYS = 5000


def read_config(path: Path | None) -> dict[str, Any]:
    """Every leaf by its dotted key. An absent, half-written or oversized file gives what it can: nothing."""
    if path is None:
        return {}
    try:
        if path.stat().st_size > MAX_BYTES:
            return {}
        tree = yaml.safe_load(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, yaml.YAMLError):
        return {}
    leaves: dict[str, Any] = {}
    if isinstance(tree, Mapping):
        for key, value in _leaves(tree, ""):
            leaves[key] = value
            if len(leaves) >= MAX_KEYS:
                break
    return leaves


def _leaves(tree: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value if isinstance(value, bool | int | float | str | None) else _text(value)


def _text(value: Any) -> str:
    """Lists and dates as YAML on one line."""
    shown: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return shown.removesuffix("...\n").strip()[:2000]
