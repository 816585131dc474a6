"""A retrieval server that misbehaves: retries, the breaker, and episodes that fail without taking others along."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from podium.config.schema import RetrieverConfig
from podium.errors import RetrievalError
from podium.retrieval.client import Breaker, RetrievalClient

DOCUMENT = {"id": "0", "title": "t", "contents": "t\ntext"}
Behaviour = Callable[[int, list[str]], tuple[int, bytes] | None]
"""From the number of the request and its queries to status and body; None: no answer for a long time."""


def good(number: int, queries: list[str]) -> tuple[int, bytes]:
    return 200, json.dumps({"result": [[{"document": DOCUMENT, "score": 1.0}] for _ in queries]}).encode()


class Server:
    def __init__(self, behaviour: Behaviour) -> None:
        outer = self
        self.num_requests = 0
        self._closing = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.num_requests += 1
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = behaviour(outer.num_requests, body["queries"])
                if answer is None:
                    outer._closing.wait()
                    return
                self.send_response(answer[0])
                self.send_header("Content-Length", str(len(answer[1])))
                self.end_headers()
                self.wfile.write(answer[1])

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/retrieve"

    def has_heard(self, num_requests: int) -> bool:
        """So many requests, and no more; a client may give one up before the server has read it."""
        deadline = time.monotonic() + BOUND_S
        while self.num_requests < num_requests and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.num_requests == num_requests

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[[Behaviour], Server]]:
    servers: list[Server] = []

    def start(behaviour: Behaviour) -> Server:
        servers.append(Server(behaviour))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def search(url: str, times: int = 1, **settings: Any) -> list[Any]:
    """The outcomes of searches made one after the other; unless the time matters, there is enough of it."""
    config = RetrieverConfig(url=url, **{"timeout_s": 300.0, "retries": 2, "breaker_failures": 100, **settings})

    async def ask() -> list[Any]:
        client = RetrievalClient(config)
        found = []
        for number in range(times):
            found += await asyncio.gather(client.search(f"q{number}"), return_exceptions=True)
        await client.close()
        return found

    return asyncio.run(ask())


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Bound, so that nobody else takes it, and not listening."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


BAD: dict[str, tuple[Behaviour, str]] = {
    "500": (lambda n, q: (500, b"broken"), "HTTP 500: broken"),
    "bad JSON": (lambda n, q: (200, b"{oh"), "no JSON"),
    "another form": (lambda n, q: (200, b'{"results": []}'), "no 'result'"),
    "wrong count": (lambda n, q: (200, b'{"result": [[], []]}'), "results for 2 queries, 1 were asked"),
    "no text": (lambda n, q: (200, b'{"result": [[{"id": 1}]]}'), "needs 'text'"),
    "slow": (lambda n, q: None, "no answer within 3 s"),
}
LIMITS = {"slow": {"timeout_s": 3.0}}
BOUND_S = 300.0
"""Far above what the limits allow, far below a hang: these tests also run on busy machines."""


@pytest.mark.parametrize("fault", BAD)
def test_a_fault_that_stays_is_an_error_with_its_reason_in_bounded_time(fault: str, serve: Any) -> None:
    behaviour, reason = BAD[fault]
    server = serve(behaviour)
    start = time.monotonic()
    (outcome,) = search(server.url, **LIMITS.get(fault, {}))
    assert isinstance(outcome, RetrievalError) and reason in str(outcome)
    assert server.has_heard(3)
    assert time.monotonic() - start < BOUND_S


def test_a_server_that_is_down_is_an_error_in_bounded_time(closed_port: int) -> None:
    start = time.monotonic()
    (outcome,) = search(f"http://127.0.0.1:{closed_port}/retrieve")
    assert isinstance(outcome, RetrievalError) and "ConnectionRefused" in str(outcome)
    assert time.monotonic() - start < BOUND_S


@pytest.mark.parametrize("fault", BAD)
def test_a_fault_that_passes_is_not_noticed(fault: str, serve: Any) -> None:
    server = serve(lambda number, queries: BAD[fault][0](number, queries) if number < 3 else good(number, queries))
    (outcome,) = search(server.url, **LIMITS.get(fault, {}))
    assert [document.text for document in outcome] == ["text"]
    assert server.has_heard(3)


def test_a_request_at_fault_is_not_sent_again(serve: Any) -> None:
    server = serve(lambda number, queries: (400, b'{"error": "no"}'))
    (outcome,) = search(server.url)
    assert "HTTP 400" in str(outcome) and server.num_requests == 1


def test_after_repeated_failures_searches_fail_at_once(serve: Any) -> None:
    server = serve(BAD["500"][0])
    start = time.monotonic()
    outcomes = search(server.url, times=50, retries=0, breaker_failures=3, breaker_s=600.0)
    assert server.num_requests == 3
    assert all(isinstance(outcome, RetrievalError) for outcome in outcomes)
    assert "left alone for 600 s after 3 failures in a row; the last: HTTP 500: broken" in str(outcomes[-1])
    assert time.monotonic() - start < BOUND_S


def test_the_breaker_lets_one_call_try_and_follows_its_outcome() -> None:
    now = [0.0]
    breaker = Breaker(2, 10.0, clock=lambda: now[0])
    breaker.failed("a")
    breaker.check()
    breaker.failed("b")
    with pytest.raises(RetrievalError, match="the last: b"):
        breaker.check()
    now[0] = 10.0
    breaker.check()  # one may try
    with pytest.raises(RetrievalError):
        breaker.check()  # the others wait for it
    breaker.succeeded()
    breaker.check()


def test_a_dripping_server_cannot_hold_a_caller() -> None:
    """A byte now and then keeps every socket timeout happy; the deadline covers the whole exchange."""
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        connection, _ = listener.accept()
        try:
            for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n":
                connection.sendall(bytes([byte]))
                time.sleep(0.05)
        except OSError:
            return

    threading.Thread(target=drip, daemon=True).start()
    start = time.monotonic()
    (outcome,) = search(f"http://127.0.0.1:{listener.getsockname()[1]}/retrieve", retries=0, timeout_s=0.3)
    assert "no answer within 0.3 s" in str(outcome)
    assert time.monotonic() - start < BOUND_S
    listener.close()
