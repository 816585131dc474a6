"""Shared test set-up: one thread per process and the same random numbers, so that a verdict is the code's alone."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")  # no test worker dies of what else the machine runs
os.environ.setdefault("RAY_worker_register_timeout_seconds", "600")  # nor because it starts slowly
os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "300")
os.environ |= {"COLUMNS": "80", "LINES": "25"}  # what is written does not depend on whose terminal this is

if importlib.util.find_spec("hypothesis"):  # the trackers' environment has none
    from hypothesis import HealthCheck, settings

    # a change lands or not for what it is, not for the luck of the draw, nor for how fast the machine is
    settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("steady")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before each test and its fixtures: what is drawn without a seed does not depend on the tests before.

    Python's own numbers stay as they are: Ray draws ports from them, and two test processes must not draw the same.
    """
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
