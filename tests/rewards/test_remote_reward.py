"""A reward behind HTTP: retried, limited in rate, and unscored when it stays away."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from podium.config.schema import RewardConfig
from podium.rewards import remote
from podium.rewards.remote import RateLimit
from podium.rewards.scorer import RewardScorer


class Server(ThreadingHTTPServer):
    failures = 0
    answer: object = None
    calls = 0


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Server = self.server  # type: ignore[assignment]
        server.calls += 1
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["rows"]
        code = 503 if server.calls <= server.failures else 200
        scores = [{"score": float(len(row["response"])), "source": row["data_source"]} for row in rows]
        body = json.dumps(server.answer if server.answer is not None else {"scores": scores}).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def outcomes(server, rows, **settings):
    address = f"http://127.0.0.1:{server.server_address[1]}/score"
    scorer = RewardScorer(RewardConfig(functions={address: 1.0}, num_processes=1, **({"timeout_s": 300.0} | settings)))
    try:
        return [future.result(300) for future in scorer.submit(rows)]
    finally:
        scorer.close()


def test_scores_come_back_for_all_rows_of_one_request(server, rows):
    got = outcomes(server, rows("a", "bcd"))
    assert [o.values for o in got] == [{"score": 1.0, "source": "mine"}, {"score": 3.0, "source": "mine"}]
    assert server.calls == 1


def test_a_failing_server_is_asked_again_and_then_the_rows_are_unscored(server, rows):
    server.failures = 2
    assert [o.status for o in outcomes(server, rows("a"), http_retries=3)] == ["ok"]
    assert server.calls == 3
    server.calls, server.failures = 0, 99
    (lost,) = outcomes(server, rows("a"), http_retries=1)
    assert lost.status == "error" and "HTTP 503" in lost.reason and server.calls == 2


def test_an_answer_of_the_wrong_length_or_with_null_is_unscored(server, rows):
    server.answer = {"scores": [1.0]}
    assert {o.status for o in outcomes(server, rows("a", "b"))} == {"error"}
    server.answer = {"scores": [None, 2.0]}
    assert [o.status for o in outcomes(server, rows("a", "b"))] == ["error", "ok"]


def test_the_rate_limit_spaces_calls(monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(remote, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    limit = RateLimit(per_second=10, sleep=pauses.append)
    for _ in range(4):
        limit.wait()
    assert pauses == pytest.approx([0.1, 0.2, 0.3])
