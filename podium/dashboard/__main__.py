"""The child process of `podium train --dashboard`: serve a folder on an inherited socket until standard input ends."""

from __future__ import annotations

import socket
import sys
import threading

from podium.dashboard.server import Address, serve


def main(folder: str, descriptor: str) -> None:
    listener = socket.socket(fileno=int(descriptor))
    end = threading.Event()

    def wait_for_parent() -> None:
        sys.stdin.buffer.read()
        end.set()

    threading.Thread(target=wait_for_parent, name="dashboard-parent", daemon=True).start()
    serve(folder, Address(listener, listener.getsockname()[0], token=None), end)


if __name__ == "__main__":
    main(*sys.argv[1:3])
