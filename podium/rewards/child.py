"""The reward process: loads the run's functions, then scores rows that come in on standard input until it closes.

It dies with the trainer that started it. What functions print goes to standard error. Time limits are kept by the other
side (runner.py), which kills this process for real.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import struct
import sys
from typing import Any, BinaryIO

HEADER = struct.Struct("<I")
PR_SET_PDEATHSIG = 1


def write_message(stream: BinaryIO, message: Any) -> None:
    data = pickle.dumps(message)
    stream.write(HEADER.pack(len(data)) + data)
    stream.flush()


def read_message(stream: BinaryIO) -> Any:
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        raise EOFError
    return pickle.loads(stream.read(HEADER.unpack(header)[0]))


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the trainer
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        spec, path = read_message(requests)
        sys.path[:] = path
        from podium.rewards.registry import load_functions

        functions = load_functions(spec)
    except Exception as error:  # noqa: BLE001  the user's file may raise anything; the runner reports it
        write_message(replies, f"{type(error).__name__}: {error}")
        return
    write_message(replies, None)
    while True:
        try:
            rows = read_message(requests)
        except EOFError:
            return
        for place, outcome in functions.score(rows):
            try:
                write_message(replies, (place, outcome))
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                from podium.rewards.records import failed

                write_message(replies, (place, failed("reward", f"returned what cannot be sent on: {error}")))


if __name__ == "__main__":
    main()
