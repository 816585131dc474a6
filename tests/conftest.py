"""Shared test set-up: one thread per process, so that results and times do not depend on the machine's load."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")  # no test worker dies of what else the machine runs

if os.environ.get("CI"):  # a change lands or not for what it is, not for the luck of the draw
    from hypothesis import settings

    settings.register_profile("ci", derandomize=True)
    settings.load_profile("ci")
