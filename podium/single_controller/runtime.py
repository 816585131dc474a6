"""Starting Ray, and finding a cluster that is already there.

A Ray that Podium starts is private to this machine: every service listens on loopback, the dashboard is off unless it
is asked for, nothing is reported to anyone. `RAY_ADDRESS` joins a running cluster instead; Podium changes nothing about
that one.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from podium.errors import ResourceError

log = logging.getLogger(__name__)

_started: list[bool] = []


def ensure_ray(num_cpus: int | None = None, num_gpus: int | None = None, dashboard: bool = False) -> None:
    """Be connected to Ray. The arguments count only for a Ray that is started here; null: what is there."""
    import ray

    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS")
    if dashboard and not address:
        _check_dashboard()
    with _sigterm_handler_kept():
        if address:
            _join(address)
            return
        with _on_loopback():
            ray.init(
                address="local",
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                include_dashboard=dashboard,
                dashboard_host="127.0.0.1",
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    _started.append(True)


def dashboard_address() -> str | None:
    """Where the dashboard of the Ray that this process is connected to answers; None: nowhere."""
    from ray._private.worker import get_dashboard_url

    url = get_dashboard_url()
    return f"http://{url}" if url else None


def _check_dashboard() -> None:
    try:
        import ray.dashboard.optional_deps  # noqa: F401  (Ray's own list of what its dashboard needs)
    except ImportError as error:
        raise ResourceError(
            f"trainer.ray_dashboard=true needs what Ray's dashboard is made of, and here is no {error.name}; install "
            "it (pip install 'ray[default]'), or set trainer.ray_dashboard=false"
        ) from error


def shutdown_ray() -> None:
    """Stop the Ray that `ensure_ray` started. One that was there before stays."""
    import ray

    if _started:
        _started.clear()
        ray.shutdown()


def _join(address: str) -> None:
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ResourceError(
            f"no Ray cluster answers at RAY_ADDRESS={address}: {error}\n"
            "Start one there (`ray start --head`), correct the address, or unset RAY_ADDRESS to use this machine alone."
        ) from error


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray take the loopback address as this node's.

    Ray replaces 127.0.0.1 by an outward address and then listens on all interfaces, except where it does not support
    clusters (macOS, Windows). This is the switch for that.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _sigterm_handler_kept() -> Iterator[None]:
    """`ray.init` replaces the handler of SIGTERM; one that was set on purpose goes back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if callable(before) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
