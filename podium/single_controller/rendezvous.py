"""How the workers of a group meet in torch.distributed.

Rank 0 binds a free port when the group starts and keeps the socket; the store of the process group then listens on that
very socket, so no other program can take the port in between. Addresses are those of the nodes, loopback when all
workers are on a machine that Ray runs on loopback. It does not decide who takes part.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from podium.single_controller.worker import WorkerInfo

log = logging.getLogger(__name__)

_held: list[socket.socket] = []


def hold_port(address: str) -> int:
    """Bind a free port of `address`, keep it for the process group of this process, and return its number."""
    release_port()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            listener.close()
            raise
        log.warning("%s is not an address of this machine; listening on all of its addresses", address)
        listener.bind(("", 0))
    listener.listen(1024)
    _held.append(listener)
    return int(listener.getsockname()[1])


def release_port() -> None:
    while _held:
        _held.pop().close()


def join_process_group(info: WorkerInfo, device: torch.device, timeout_s: float) -> None:
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        return
    interface = interface_of(info.node)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    limit = timedelta(seconds=timeout_s)
    listener = _held.pop() if info.rank == 0 and _held else None
    store = dist.TCPStore(  # type: ignore[attr-defined]
        info.master_addr,
        info.master_port,
        info.world_size,
        is_master=info.rank == 0,
        timeout=limit,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),  # the store owns and closes it from here
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=info.rank,
        world_size=info.world_size,
        timeout=limit,
        device_id=device if device.type == "cuda" else None,
    )


def interface_of(address: str) -> str | None:
    """The network interface that has an IPv4 address, where the system tells (Linux)."""
    if not sys.platform.startswith("linux"):
        return None
    import fcntl

    get_address = 0x8915  # SIOCGIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe.fileno(), get_address, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return None
