"""The application, its guard and its socket: `podium serve`.

Listens on loopback unless told otherwise; bound wider, every request needs the key. Told to stop, it takes no new
requests, lets those under way end within the grace time, and aborts the rest.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from podium.config.schema import ModelConfig, RolloutConfig
from podium.dashboard.security import is_loopback
from podium.engines.rollout.native.engine import NativeEngine
from podium.errors import CheckpointError, ConfigError, ModelError, RolloutError
from podium.models.load import load_causal_lm, load_tokenizer, resolve_dtype
from podium.serving.generation import Generator
from podium.serving.openai_routes import OpenAIRoutes
from podium.serving.parameters import BadRequest
from podium.serving.sglang_routes import SGLangRoutes

GRACE_S = 10


@dataclass(frozen=True)
class Served:
    """What to serve and how."""

    model: str
    name: str
    dtype: str = "auto"
    device: str = "cpu"
    max_num_seqs: int = 64
    kv_cache_gb: float = 2.0
    allow_updates: bool = False


def load_generator(served: Served) -> Generator:
    """The model in a native engine."""
    model, device = ModelConfig(path=served.model), torch.device(served.device)
    tokenizer = load_tokenizer(served.model)
    dtype = resolve_dtype(served.dtype, device)
    settings = RolloutConfig(max_num_seqs=served.max_num_seqs, kv_cache_gb=served.kv_cache_gb)
    engine = NativeEngine(load_causal_lm(model, dtype, device), settings, tokenizer, dtype)
    return Generator(engine, tokenizer, served.name)


def make_app(generator: Generator, model: str, key: str | None = None, allow_updates: bool = False) -> Starlette:
    return Starlette(
        routes=[*OpenAIRoutes(generator).routes(), *SGLangRoutes(generator, model, allow_updates).routes()],
        middleware=[Middleware(Guard, key=key)],
        exception_handlers={
            BadRequest: _bad_request,
            RolloutError: _refused,
            HTTPException: _http_error,
        },
    )


def _error(message: str, status: int, kind: str = "invalid_request_error", field: str | None = None) -> Response:
    """In OpenAI's shape."""
    return JSONResponse({"error": {"message": message, "type": kind, "param": field, "code": None}}, status)


def _bad_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequest)
    return _error(str(error), 404 if error.field == "model" else 400, field=error.field)


def _refused(_: Request, error: Exception) -> Response:
    return _error(str(error), 400)


def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(str(error.detail), error.status_code)


class Guard:
    """On loopback the host name must be a local one, so that no foreign page gets in; elsewhere the key is needed."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app, self._key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refuse(Request(scope))) is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refuse(self, request: Request) -> Response | None:
        if self._key is None:
            name = request.url.hostname or ""
            return None if is_loopback(name) else _error(f"host {name!r} is not this machine's loopback", 421)
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(given.encode(), self._key.encode()):
            return None
        return _error("give the key that podium serve printed as a bearer token", 401, "authentication_error")


@dataclass(frozen=True)
class Listening:
    socket: socket.socket
    url: str
    key: str | None


def listen(host: str, port: int, key: str | None) -> Listening:
    """A bound socket; wider than loopback there is always a key."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port} ({error}); choose another --host or --port") from error
    listener.listen(1024)
    if not is_loopback(host) and key is None:
        key = secrets.token_urlsafe(24)
    shown = f"[{host}]" if ":" in host else host
    return Listening(listener, f"http://{shown}:{listener.getsockname()[1]}", key)


def run(app: Starlette, listening: Listening) -> None:
    """Answer until SIGTERM or SIGINT."""
    settings = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=GRACE_S, server_header=False)
    uvicorn.Server(settings).run(sockets=[listening.socket])


def find_model(place: str, step: int | None = None) -> str:
    """The model that a run folder, a checkpoint, a Hugging Face folder or a name means."""
    folder = Path(place)
    if not folder.is_dir() or (folder / "config.json").is_file():
        if step is not None:
            raise ConfigError(f"--step={step} needs a run folder; {place} is a model")
        return place
    from podium.checkpoint.store import find_checkpoint

    try:
        found = find_checkpoint(folder, step) / "hf"
    except CheckpointError as error:
        if start := start_of(folder):
            error.add_note(f"The model that this run started from is {start}: give that instead of {place}.")
        raise
    if not (found / "config.json").is_file():
        raise ModelError(f"{found.parent} has no exported model; `podium export {place} MODEL` makes one")
    return str(found)


def start_of(run: Path) -> str | None:
    """The model a run started from, as its config.yaml has it."""
    from podium.config import load_config

    try:
        return load_config(run / "config.yaml").actor_rollout_ref.model.path
    except ConfigError:  # there is none, or it is of another command
        return None
