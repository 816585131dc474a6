"""Whether an error that a worker raised says that another worker is gone, rather than that its own code is wrong."""

from __future__ import annotations

import re

_OF_TRANSPORTS = re.compile(r"(RuntimeError|TimeoutError|OSError|EOFError|Broken\w*|Connection\w*|Dist\w*Error)\b")
_LOST_PEER = re.compile(r"\bpeer\b(?! access)|connection (was )?(reset|closed|aborted)|\bnccl|\bgloo\b", re.IGNORECASE)


def speaks_of_lost_peer(cause: str) -> bool:
    """`cause` is "TypeOfError: its message"."""
    return bool(_OF_TRANSPORTS.match(cause) and _LOST_PEER.search(cause))
