"""What a check says: one finding per fact, good or bad, with the fix where it is bad."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    part: str
    """What was looked at: settings, data, reward, model, memory, cluster, ..."""
    level: Level
    text: str
    fix: str = ""


Findings = Iterator[Finding]


def ok(part: str, text: str) -> Finding:
    return Finding(part, "ok", text)


def note(part: str, text: str, fix: str = "") -> Finding:
    return Finding(part, "note", text, fix)


def problem(part: str, text: str, fix: str) -> Finding:
    return Finding(part, "problem", text, fix)
