"""Documents for a query, from a server or from an index in this process, batched over whoever waits.

A server that is down, slow, answers 500, nonsense or too few lists is asked again with growing pauses; after repeated
failures a breaker lets every search fail at once for a while, so that a dead server costs seconds, not a timeout per
episode. A failure is a RetrievalError: what becomes of the episode is not decided here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from podium.config.schema import RetrieverConfig
from podium.errors import DataError, RetrievalError
from podium.retrieval.batching import Batcher
from podium.retrieval.corpus import Document, make_document, read_corpus
from podium.retrieval.http import HttpFault, JsonClient
from podium.retrieval.index import Index, make_index

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0


@dataclass
class Breaker:
    """Opens after `max_failures` in a row, for `open_s`; then one call may try, and its outcome decides."""

    max_failures: int
    open_s: float
    clock: Callable[[], float] = time.monotonic
    num_failures: int = 0
    reason: str = ""
    _opened_s: float | None = None

    def check(self) -> None:
        """Raise while open."""
        if self._opened_s is None:
            return
        if self.clock() - self._opened_s < self.open_s:
            raise RetrievalError(
                f"the retriever is left alone for {self.open_s:g} s after {self.num_failures} failures in a row; the "
                f"last: {self.reason}"
            )
        self._opened_s = self.clock()  # the others wait for what this one finds

    def succeeded(self) -> None:
        self.num_failures, self._opened_s = 0, None

    def failed(self, reason: str) -> None:
        self.num_failures, self.reason = self.num_failures + 1, reason
        if self.num_failures >= self.max_failures:
            self._opened_s = self.clock()


class RetrievalClient:
    """A retrieval server, over `POST /retrieve`."""

    def __init__(self, config: RetrieverConfig) -> None:
        self.config = config
        self.address = with_path(config.url)
        self.breaker = Breaker(config.breaker_failures, config.breaker_s)
        self._http = JsonClient(self.address)
        self._batcher: Batcher[list[Document]] = Batcher(self._retrieve, config.max_batch)

    async def search(self, query: str) -> list[Document]:
        self.breaker.check()
        return await self._batcher.ask(query)

    async def close(self) -> None:
        await self._batcher.close()
        await self._http.close()

    async def _retrieve(self, queries: list[str]) -> list[list[Document]]:
        problem = ""
        for attempt in range(self.config.retries + 1):
            if attempt:
                await asyncio.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (attempt - 1)))
            self.breaker.check()
            try:
                content = {"queries": queries, "topk": self.config.topk, "return_scores": True}
                documents = read_result(await self._http.post(content, self.config.timeout_s), len(queries))
            except HttpFault as fault:
                problem = str(fault)
                self.breaker.failed(problem)
                if not fault.may_retry:
                    break
            else:
                self.breaker.succeeded()
                return documents
        raise RetrievalError(f"{self.address} gave no documents: {problem}")


class LocalRetriever:
    """An index in this process."""

    def __init__(self, index: Index, topk: int, max_batch: int = 64) -> None:
        self.index, self.topk = index, topk
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="podium-retrieval")
        self._batcher: Batcher[list[Document]] = Batcher(self._retrieve, max_batch, max_calls=1)

    async def search(self, query: str) -> list[Document]:
        return await self._batcher.ask(query)

    async def close(self) -> None:
        await self._batcher.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _retrieve(self, queries: list[str]) -> list[list[Document]]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._pool, self.index.search, queries, self.topk)
        return [[document for document, _ in each] for each in found]


def make_retriever(config: RetrieverConfig) -> RetrievalClient | LocalRetriever:
    """The server `retriever.url`, or else an index over `retriever.corpus` in this process."""
    if config.url:
        return RetrievalClient(config)
    return LocalRetriever(
        make_index(read_corpus(config.corpus), config.dense_model or None), config.topk, config.max_batch
    )


def with_path(url: str) -> str:
    """A bare host has the service under /retrieve."""
    return f"{url.rstrip('/')}/retrieve" if url.count("/") <= 2 or url.rstrip("/").count("/") <= 2 else url


def read_result(answer: Any, num_queries: int) -> list[list[Document]]:
    """The documents of each query; HttpFault when the answer has another form."""
    result = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(result, list) or not all(isinstance(found, list) for found in result):
        raise HttpFault("the answer has no 'result' with a list for each query")
    if len(result) != num_queries:
        raise HttpFault(f"the answer has results for {len(result)} queries, {num_queries} were asked")
    try:
        return [[_document(item) for item in found] for found in result]
    except DataError as error:
        raise HttpFault(str(error)) from error


def _document(item: Any) -> Document:
    """With scores an item is {document, score}, without it is the document."""
    row = item["document"] if isinstance(item, dict) and "document" in item else item
    return make_document(row, "a document of the answer")
