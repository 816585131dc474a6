"""How a run stands: running, finished, stopped, crashed or stalled, told from events, log and the age of files.

A run writes `finished` when it ends well. A failure leaves a traceback at the end of console.log, or an event that says
so. A run that has been silent for much longer than its steps take is stalled: nobody can tell from a folder whether its
process still lives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["running", "finished", "stopped", "crashed", "stalled", "empty"]
Severity = Literal["error", "warning", "info"]

MIN_SILENCE_S = 60.0
SILENT_STEPS = 10
"""Silence that stands for a stall: this many steps, and a minute at the least."""

_STARTS = frozenset({"started", "resumed"})
_STOPS = frozenset({"stopped", "interrupted", "terminated"})
_CRASHES = frozenset({"failed", "crashed", "aborted"})
_ERROR = re.compile(r"fail|crash|died|error|corrupt|broken|abort|killed|lost", re.IGNORECASE)
_WARNING = re.compile(
    r"non_finite|restart|skip|timeout|stall|quarantine|retr|unscored|interrupt|terminat|stopped|warn|drop|partial",
    re.IGNORECASE,
)
_TRACEBACK = b"Traceback (most recent call last):"
_SIGN_OF_LIFE = re.compile(rb"^(podium: |step \d+/|validation at |resumed from )", re.MULTILINE)
_PROGRESS = re.compile(rb"^step \d+/(\d+)", re.MULTILINE)
_ANNOUNCED = re.compile(rb"^podium: .* (\d+) steps\b", re.MULTILINE)


@dataclass(frozen=True)
class Standing:
    status: Status
    reason: str


def standing(
    events: Sequence[Mapping[str, Any]],
    log_tail: bytes,
    *,
    total_steps: int | None,
    silence_s: float | None,
    step_s: float | None,
) -> Standing:
    """What the traces say. `silence_s` is None when the run has written nothing yet."""
    last = _last_turn(events)
    if last is not None and last["kind"] == "resumed" and total_steps and last.get("step") == total_steps:
        return Standing("finished", "")  # it was asked to go on and had nothing left to do
    if last is not None and last["kind"] == "finished":
        return Standing("finished", "")
    if last is not None and last["kind"] in _STOPS | _CRASHES:
        return Standing("stopped" if last["kind"] in _STOPS else "crashed", describe(last))
    failure = traceback_reason(log_tail)
    if failure.startswith("KeyboardInterrupt"):
        return Standing("stopped", "interrupted from the keyboard")
    if failure:
        return Standing("crashed", failure)
    if silence_s is None:
        return Standing("empty", "nothing has been written yet")
    limit = max(MIN_SILENCE_S, SILENT_STEPS * (step_s or 0.0))
    if silence_s > limit:
        return Standing("stalled", "silent for longer than its steps take; the process may be gone")
    return Standing("running", "")


def _last_turn(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The last event that began or ended the run."""
    turns = _STARTS | _STOPS | _CRASHES | {"finished"}
    return next((event for event in reversed(events) if event.get("kind") in turns), None)


def traceback_reason(log_tail: bytes) -> str:
    """The error that console.log ends with, unless the run went on after it."""
    at = log_tail.rfind(_TRACEBACK)
    if at < 0 or (at > 0 and log_tail[at - 1 : at] != b"\n") or _SIGN_OF_LIFE.search(log_tail, at):
        return ""
    lines = log_tail[at:].decode("utf-8", "replace").rstrip().splitlines()[1:]
    # The message begins at the last line that is not indented code; it may go on over several lines.
    named = [line for line in lines if line and not line.startswith((" ", "\t"))]
    return named[0][:500] if named else "it ended with a traceback"


def total_steps(config: Mapping[str, Any], log_tail: bytes) -> int | None:
    """The last step the run is to take: from the log, which knows epochs too, else from the config."""
    for pattern in (_PROGRESS, _ANNOUNCED):
        found = pattern.findall(log_tail)
        if found:
            return int(found[-1])
    steps = config.get("trainer.total_training_steps")
    return steps if isinstance(steps, int) else None


def severity(kind: str) -> Severity:
    """How much an event matters, by the words of its kind: rooms may add kinds without telling the dashboard."""
    if kind in _CRASHES or _ERROR.search(kind):
        return "error"
    return "warning" if _WARNING.search(kind) else "info"


def describe(event: Mapping[str, Any]) -> str:
    """One line about an event: its reason where it names one, else its kind."""
    for name in ("reason", "error", "message"):
        if isinstance(event.get(name), str):
            return str(event[name])[:500]
    return str(event.get("kind", ""))
