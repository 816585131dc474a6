"""The retrieval server: `POST /retrieve` and `GET /health` over one index.

    {"queries": [...], "topk": 3, "return_scores": true}
    -> {"result": [[{"document": {"id", "title", "contents"}, "score": f}, ...], ...]}

Queries of requests that come in together are searched together, in a thread, so that the server keeps answering. Bad
input is a 4xx with a JSON reason. On SIGTERM or SIGINT it stops taking requests and finishes those under way.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from podium.errors import ConfigError
from podium.retrieval.batching import Batcher
from podium.retrieval.index import Found, Index

MAX_QUERIES, MAX_TOPK, MAX_BATCH = 4096, 1000, 1024
GRACE_S = 10


class Searcher:
    """The index behind a batcher; each query is asked for the most documents anybody in its batch wants."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="podium-index")
        self._batchers: dict[int, Batcher[Found]] = {}
        self.num_queries = 0

    async def search(self, queries: list[str], topk: int) -> list[Found]:
        self.num_queries += len(queries)
        if len(queries) >= MAX_BATCH // 4:  # large enough to be a batch of its own
            return await self._search(queries, topk)
        batcher = self._batchers.setdefault(topk, Batcher(lambda asked: self._search(asked, topk), MAX_BATCH, 1))
        return list(await asyncio.gather(*(batcher.ask(query) for query in queries)))

    async def _search(self, queries: list[str], topk: int) -> list[Found]:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.index.search, queries, topk)

    async def close(self) -> None:
        for batcher in self._batchers.values():
            await batcher.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def make_app(index: Index, topk: int = 3) -> Starlette:
    """`topk`: for requests that do not say."""
    searcher = Searcher(index)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await searcher.close()

    async def retrieve(request: Request) -> Response:
        queries, wanted, with_scores = _read(await _json(request), topk)
        found = await searcher.search(queries, wanted)
        return JSONResponse({"result": [[_item(document, with_scores) for document in each] for each in found]})

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok", "documents": len(index.documents), "queries": searcher.num_queries})

    return Starlette(
        routes=[Route("/retrieve", retrieve, methods=["POST"]), Route("/health", health)],
        exception_handlers={HTTPException: _as_json},
        lifespan=lifespan,
    )


async def _json(request: Request) -> Any:
    try:
        return json.loads(await request.body())
    except ValueError as error:
        raise HTTPException(400, f"the body is no JSON ({error})") from error


def _read(body: Any, default_topk: int) -> tuple[list[str], int, bool]:
    if not isinstance(body, dict):
        raise HTTPException(400, "the body must be an object with 'queries'")
    queries, topk = body.get("queries"), body.get("topk")
    topk = default_topk if topk is None else topk
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise HTTPException(400, "'queries' must be a list of strings")
    if len(queries) > MAX_QUERIES:
        raise HTTPException(413, f"{len(queries)} queries in one request; at most {MAX_QUERIES} are allowed")
    if isinstance(topk, bool) or not isinstance(topk, int) or not 0 <= topk <= MAX_TOPK:
        raise HTTPException(400, f"'topk' must be a whole number from 0 to {MAX_TOPK}, not {topk!r}")
    with_scores = body.get("return_scores", False)
    if not isinstance(with_scores, bool):
        raise HTTPException(400, f"'return_scores' must be true or false, not {with_scores!r}")
    return queries, topk, with_scores


def _item(found: tuple[Any, float], with_scores: bool) -> dict[str, Any]:
    document, score = found
    return {"document": document.record(), "score": score} if with_scores else document.record()


def _as_json(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


def bind(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(256)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"the retriever cannot listen on {host}:{port} ({error}); choose another --host or --port"
        ) from error
    return listener


def serve(index: Index, listener: socket.socket, topk: int = 3, end: threading.Event | None = None) -> None:
    """Answer until SIGTERM or SIGINT, or until `end` is set; requests under way are finished."""
    settings = uvicorn.Config(
        make_app(index, topk), log_level="warning", timeout_graceful_shutdown=GRACE_S, server_header=False
    )
    server = uvicorn.Server(settings)
    if end is not None:

        def stop() -> None:
            end.wait()
            server.should_exit = True

        threading.Thread(target=stop, name="podium-retriever-end", daemon=True).start()
    server.run(sockets=[listener])


class Beside:
    """A server in a thread of this process, until `close`; for tests, and for one machine."""

    def __init__(self, index: Index, topk: int = 3, host: str = "127.0.0.1", port: int = 0) -> None:
        self._listener = bind(host, port)
        self._end = threading.Event()
        self._thread = threading.Thread(
            target=serve, args=(index, self._listener, topk, self._end), name="podium-retriever", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"http://{host}:{port}/retrieve"

    def close(self) -> None:
        self._end.set()
        self._thread.join(timeout=GRACE_S + 5)
        self._listener.close()
