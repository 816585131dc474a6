from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from podium.config.schema import RetrieverConfig
from podium.retrieval.client import LocalRetriever, RetrievalClient, make_retriever
from podium.retrieval.corpus import Document
from podium.retrieval.index import BM25Index, Found
from podium.retrieval.server import Beside

DOCUMENTS = [Document("0", "Rome", "Rome is in Italy."), Document("1", "Paris", "Paris is in France.")]


@pytest.fixture
def server() -> Iterator[Beside]:
    beside = Beside(BM25Index(DOCUMENTS))
    yield beside
    beside.close()


def post(url: str, body: Any) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=300) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_the_answer_has_the_documents_with_and_without_scores(server: Beside) -> None:
    document = {"id": "1", "title": "Paris", "contents": "Paris\nParis is in France."}
    status, plain = post(server.url, {"queries": ["Paris", "Rome"], "topk": 1})
    assert status == 200 and plain["result"][0] == [document]
    assert plain["result"][1][0]["title"] == "Rome"
    _, scored = post(server.url, {"queries": ["Paris"], "topk": 2, "return_scores": True})
    assert scored["result"][0][0]["document"] == document and scored["result"][0][0]["score"] > 0
    assert post(server.url, {"queries": []}) == (200, {"result": []})


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"{", 400, "no JSON"),
        ([], 400, "object"),
        ({}, 400, "'queries'"),
        ({"queries": [1]}, 400, "'queries'"),
        ({"queries": ["a"], "topk": "x"}, 400, "'topk'"),
        ({"queries": ["a"], "topk": -1}, 400, "'topk'"),
        ({"queries": ["a"], "return_scores": 1}, 400, "'return_scores'"),
        ({"queries": ["a"] * 5000}, 413, "5000 queries"),
    ],
)
def test_bad_input_is_refused_with_a_reason(body: Any, status: int, reason: str, server: Beside) -> None:
    code, answer = post(server.url, body)
    assert code == status and reason in answer["error"]


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=300) as response:
        return json.loads(response.read())


def test_health_says_how_many_documents_there_are(server: Beside) -> None:
    assert get(server.url.replace("retrieve", "health"))["documents"] == 2


class Counting:
    """Remembers how many queries came together; the first search takes until it may go on."""

    def __init__(self) -> None:
        self.documents: Sequence[Document] = DOCUMENTS
        self.sizes: list[int] = []
        self.go_on = threading.Event()

    def search(self, queries: Sequence[str], topk: int) -> list[Found]:
        self.sizes.append(len(queries))
        assert self.go_on.wait(300)
        return [[(DOCUMENTS[0], 1.0)] for _ in queries]


def test_episodes_that_wait_at_the_same_time_share_a_request() -> None:
    index = Counting()
    index.go_on.set()

    async def ask() -> int:
        retriever = LocalRetriever(index, topk=1)
        found = await asyncio.gather(*(retriever.search(str(number)) for number in range(40)))
        await retriever.close()
        return len(found)

    assert asyncio.run(ask()) == 40
    assert index.sizes == [40]


def test_a_server_batches_over_requests() -> None:
    """The first search is under way before the others are sent: sent with it, they might all be in one."""
    index = Counting()
    beside = Beside(index)
    threads = [threading.Thread(target=post, args=(beside.url, {"queries": ["q"]})) for _ in range(12)]
    threads[0].start()
    while not index.sizes:
        time.sleep(0.02)
    for thread in threads[1:]:
        thread.start()
    health = beside.url.replace("retrieve", "health")
    while get(health)["queries"] < 12:
        time.sleep(0.02)
    index.go_on.set()
    for thread in threads:
        thread.join()
    beside.close()
    assert index.sizes == [1, 11], "those that came during the first search, all together"


def test_a_client_reads_what_the_server_sends(server: Beside) -> None:
    async def ask() -> list[list[str]]:
        client = RetrievalClient(RetrieverConfig(url=server.url.removesuffix("/retrieve"), topk=1))
        found = await asyncio.gather(client.search("Paris"), client.search("Rome"), client.search("nothing known"))
        again = await client.search("Rome")  # over the connection that was kept
        await client.close()
        return [[document.title for document in each] for each in [*found, again]]

    assert asyncio.run(ask()) == [["Paris"], ["Rome"], [], ["Rome"]]


def test_without_an_address_the_corpus_is_searched_in_the_run(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps(document.record()) for document in DOCUMENTS))

    async def ask() -> list[Document]:
        retriever = make_retriever(RetrieverConfig(corpus=str(path), topk=1))
        found = await retriever.search("Paris")
        await retriever.close()
        return found

    assert asyncio.run(ask()) == [DOCUMENTS[1]]


def test_podium_retrieve_serves_and_ends_on_sigterm_with_requests_answered(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps(document.record()) for document in DOCUMENTS))
    words = [sys.executable, "-m", "podium.cli.main", "retrieve", "--corpus", str(path), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stdout is not None
        assert "2 documents" in process.stdout.readline()
        url = process.stdout.readline().split()[-1]
        for _ in range(3000):
            try:
                status, answer = post(url, {"queries": ["Rome"], "topk": 1})
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        assert status == 200 and answer["result"][0][0]["title"] == "Rome"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=300) in (0, -signal.SIGTERM, 143)
    finally:
        process.kill()
        process.communicate()
