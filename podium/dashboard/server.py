"""The application and its socket; serving it here, or beside a training run in a process of its own.

The socket is bound before anything is said about its address, and kept: the port that is printed is the port that
answers. Beside a training run the dashboard is a child process, so that it takes no time from the step; it ends when
the run ends, however that comes.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from podium.dashboard.folders import RunsFolder
from podium.dashboard.live import Watcher
from podium.dashboard.routes import RunRoutes
from podium.dashboard.runs import RunStore
from podium.dashboard.sample_routes import SampleRoutes
from podium.dashboard.security import Guard, is_loopback
from podium.errors import ConfigError

STATIC = Path(__file__).parent / "static"
DEFAULT_PORT = 8642
PORTS_TO_TRY = 50


def make_app(folder: str | Path, token: str | None = None) -> Starlette:
    """The dashboard over a folder of runs. Without a token only requests to a loopback name are answered."""
    store = RunStore(RunsFolder(folder))
    watcher = Watcher(store)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        threading.Thread(target=store.warm_up, name="dashboard-warm-up", daemon=True).start()
        async with watcher.running():
            yield

    return Starlette(
        routes=[
            *RunRoutes(store, watcher).routes(),
            *SampleRoutes(store).routes(),
            Mount("/", StaticFiles(directory=STATIC, html=True)),
        ],
        middleware=[Middleware(Guard, token=token)],
        exception_handlers={HTTPException: _as_json, OSError: _file_vanished},
        lifespan=lifespan,
    )


def _as_json(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


def _file_vanished(_: Request, error: Exception) -> Response:
    """A run was moved or cut while it was read; the next request finds out."""
    return JSONResponse({"error": f"a file of the run could not be read: {type(error).__name__}"}, 503)


@dataclass(frozen=True)
class Address:
    """A bound socket, and what to open in a browser."""

    socket: socket.socket
    host: str
    token: str | None

    @property
    def url(self) -> str:
        host = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host  # every address: name one
        host = f"[{host}]" if ":" in host else host
        query = f"?token={self.token}" if self.token else ""
        return f"http://{host}:{self.socket.getsockname()[1]}/{query}"

    def url_of(self, run: str) -> str:
        return f"{self.url}#/curves?run={quote(run)}"


def bind(host: str = "127.0.0.1", port: int | None = None) -> Address:
    """A listening address: the port that was asked for, or the first free one from the default on."""
    ports = [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TO_TRY), 0]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(128)
        except OSError as error:
            listener.close()
            reason = error
            continue
        return Address(listener, host, None if is_loopback(host) else secrets.token_urlsafe(24))
    raise ConfigError(f"the dashboard cannot listen on {host}:{ports[0]} ({reason}); choose another --host or --port")


def serve(folder: str | Path, address: Address, end: threading.Event | None = None) -> None:
    """Answer until interrupted, or until `end` is set."""
    settings = uvicorn.Config(
        make_app(folder, address.token), log_level="warning", timeout_graceful_shutdown=1, server_header=False
    )
    server = uvicorn.Server(settings)
    if end is not None:

        def stop() -> None:
            end.wait()
            server.should_exit = True

        threading.Thread(target=stop, name="dashboard-end", daemon=True).start()
    server.run(sockets=[address.socket])


class Beside:
    """A dashboard in a child process, for as long as this one lives or until `close`."""

    def __init__(self, folder: str | Path) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.address = bind()
        listener = self.address.socket
        # The child reads its standard input and ends when that ends: with this process, whatever happens to it.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "podium.dashboard", str(folder), str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(listener.fileno(),),
            start_new_session=True,  # Ctrl-C is for the training run
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.address.socket.close()
