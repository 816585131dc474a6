"""`podium dashboard`: serve the page over a folder of runs until interrupted."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from podium.errors import ConfigError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EPILOG = """\
The page shows every run below the folder: curves, samples, timeline, events
and settings, live while a run goes on. It only reads.

examples:
  podium dashboard                       the runs in runs/
  podium dashboard runs/podium/quickstart
  podium dashboard /copies --port 9000
  podium dashboard --host 0.0.0.0        for other machines, with a token

Bound to anything but loopback it makes a token, and the printed address has
it. The token travels unencrypted: prefer `ssh -L 8642:localhost:8642 host`.
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "dashboard",
        help="look at runs in a browser",
        description="Look at runs in a browser.",
        epilog=EPILOG,
        usage="podium dashboard [folder] [--host HOST] [--port PORT]",
    )
    parser.add_argument("words", nargs="*", metavar="folder", help="a folder of runs, or one run (default: runs)")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, help="the port (default: the first free one from 8642)")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if len(arguments.words) > 1:
        raise ConfigError(f"podium dashboard takes one folder, not {len(arguments.words)}: {' '.join(arguments.words)}")
    if arguments.port is not None and not 0 <= arguments.port <= 65535:
        raise ConfigError(f"--port={arguments.port} is not a port; allowed are 0 (any free one) to 65535")
    from podium.dashboard.folders import RunsFolder
    from podium.dashboard.server import bind, serve

    folder = RunsFolder(arguments.words[0] if arguments.words else "runs").root
    address = bind(arguments.host, arguments.port)
    sys.stdout.write(f"podium dashboard: {address.url}\n")
    if address.token:
        sys.stdout.write("Anyone with this address can read the runs; the token is in it.\n")
    sys.stdout.flush()
    serve(folder, address)
    return 0
