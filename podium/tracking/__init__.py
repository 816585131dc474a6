"""The record of a run and its readers: the run folder, the console, and trackers."""

from __future__ import annotations

from podium.tracking.console import Console, RunSummary
from podium.tracking.runlog import RunLog, Sample, read_events, read_metrics, read_samples
from podium.tracking.trackers import Tracker, make_trackers, register_tracker

__all__ = [
    "Console",
    "RunLog",
    "RunSummary",
    "Sample",
    "Tracker",
    "make_trackers",
    "read_events",
    "read_metrics",
    "read_samples",
    "register_tracker",
]
