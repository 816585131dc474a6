"""Which documents answer a query: BM25 over words, exact to the last of the top k.

The scores are those of `bm25s` (Lucene's BM25), computed once when the index is built. A search finds a score that k
documents surely have, and walks through the documents of the most telling words only: whoever has none of those cannot
reach it. Ties go to the document that stands first in the corpus. Dense search is in dense.py.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from podium.errors import ConfigError
from podium.retrieval.corpus import Document

Array = np.ndarray[Any, Any]
Found = list[tuple[Document, float]]
"""Documents with their scores, the best first."""

WORD = re.compile(r"\w+")
SLACK = 1e-4
"""More than float32 rounding of a sum of a few scores."""
CHAMPIONS = 64
"""Documents of a word that are tried first."""
SPARSE = 32
"""With fewer postings than a document in so many has, they are sorted instead of summed up over all documents."""
COLUMN_BYTES = 256 << 20
"""Memory for the scores of frequent words, document by document."""


class Index(Protocol):
    documents: Sequence[Document]

    def search(self, queries: Sequence[str], topk: int) -> list[Found]:
        """For each query its `topk` best documents, fewer where fewer match."""
        ...


def make_index(documents: Sequence[Document], dense_model: str | None = None) -> Index:
    """BM25, or a dense index with the sentence-transformers folder `dense_model`."""
    if dense_model is None:
        return BM25Index(documents)
    from podium.retrieval.dense import DenseIndex

    return DenseIndex(documents, dense_model)


def words_of(text: str) -> list[str]:
    return WORD.findall(text.lower())


class BM25Index:
    def __init__(self, documents: Sequence[Document], k1: float = 1.5, b: float = 0.75) -> None:
        import bm25s

        if not documents:
            raise ConfigError("an index needs at least one document")
        self.documents = documents
        self.vocabulary: dict[str, int] = {}
        ids = [
            [self.vocabulary.setdefault(word, len(self.vocabulary)) for word in words_of(document.contents)]
            for document in documents
        ]
        if not self.vocabulary:
            raise ConfigError("no document of the corpus has a word in it")
        logging.getLogger("bm25s").setLevel(logging.WARNING)
        scorer = bm25s.BM25(k1=k1, b=b, method="lucene")
        scorer.index((ids, self.vocabulary), create_empty_token=False, show_progress=False)
        self._scores: Array = scorer.scores["data"]
        self._rows: Array = scorer.scores["indices"]
        self._starts: Array = scorer.scores["indptr"]
        self._sort_postings()
        self._best_of: dict[int, Array] = {}
        self._columns: dict[int, Array] = {}

    def _sort_postings(self) -> None:
        """Postings of each word by document, and the most that each word can add."""
        word_of = np.repeat(np.arange(len(self.vocabulary)), np.diff(self._starts))
        order = np.lexsort((self._rows, word_of))
        self._rows, self._scores = self._rows[order].astype(np.int64), self._scores[order].astype(np.float64)
        self._most = np.zeros(len(self.vocabulary))
        np.maximum.at(self._most, word_of, self._scores)

    def search(self, queries: Sequence[str], topk: int) -> list[Found]:
        return [self._search(query, topk) for query in queries]

    def _search(self, query: str, topk: int) -> Found:
        words: dict[int, int] = {}  # how often each known word stands in the query
        for word in words_of(query):
            if (number := self.vocabulary.get(word)) is not None:
                words[number] = words.get(number, 0) + 1
        if not words or topk < 1:
            return []
        postings = sorted((self._posting(*item) for item in words.items()), key=lambda posting: -posting.bound)
        rows, scores = _candidates(postings, self._known(postings, topk), len(self.documents))
        if len(rows) > 4 * topk:
            ahead = scores >= np.partition(scores, len(rows) - topk)[len(rows) - topk]
            rows, scores = rows[ahead], scores[ahead]
        order = np.lexsort((rows, -scores))[:topk]
        return [(self.documents[int(rows[i])], float(scores[i])) for i in order]

    def _posting(self, word: int, times: int) -> _Posting:
        span = slice(int(self._starts[word]), int(self._starts[word + 1]))
        scores = self._scores[span] if times == 1 else self._scores[span] * times
        return _Posting(word, self._rows[span], scores, float(self._most[word]) * times, self._column(word, times))

    def _column(self, word: int, times: int) -> Array | None:
        """What a frequent word adds to every document, made when it is first asked for, while there is room."""
        start, end, size = int(self._starts[word]), int(self._starts[word + 1]), len(self.documents)
        column = self._columns.get(word)
        if column is None and (end - start) * SPARSE > size and len(self._columns) * size * 4 < COLUMN_BYTES:
            column = np.zeros(size, dtype=np.float32)
            column[self._rows[start:end]] = self._scores[start:end]
            self._columns[word] = column
        return column if column is None or times == 1 else column * times

    def _known(self, postings: Sequence[_Posting], topk: int) -> float:
        """A score that at least `topk` documents have: of some that have the most telling words."""
        known = 0.0
        for posting in postings[:2]:
            rows = self._champions(posting) if len(posting.rows) > CHAMPIONS else posting.rows
            if len(rows) >= topk:
                scores = sum((other.at(rows) for other in postings), np.zeros(len(rows)))
                known = max(known, float(np.partition(scores, len(rows) - topk)[len(rows) - topk]))
        return known

    def _champions(self, posting: _Posting) -> Array:
        """The documents to which a frequent word adds most; found once."""
        rows = self._best_of.get(posting.word)
        if rows is None:
            best = np.argpartition(posting.scores, len(posting.rows) - CHAMPIONS)[len(posting.rows) - CHAMPIONS :]
            rows = self._best_of[posting.word] = np.sort(posting.rows[best])
        return rows


@dataclass(frozen=True, slots=True)
class _Posting:
    """The documents that have a word, in order, with what it adds to each, and the most it adds to any."""

    word: int
    rows: Array
    scores: Array
    bound: float
    column: Array | None
    """Of a frequent word: what it adds to every document."""

    def at(self, rows: Array) -> Array:
        """What the word adds to these documents."""
        if self.column is not None:
            return self.column[rows]
        places = self.rows.searchsorted(rows)
        places[places == len(self.rows)] = 0
        return np.where(self.rows[places] == rows, self.scores[places], 0.0)


def _candidates(postings: Sequence[_Posting], known: float, num_documents: int) -> tuple[Array, Array]:
    """Every document with a score of at least `known`, and perhaps more, with their whole scores.

    Words come by what they can add. A document without any of the first ones cannot reach `known` with the others
    alone, so the documents of those, the frequent words, are never walked through.
    """
    left, first = sum(posting.bound for posting in postings), 0
    while first < len(postings) and left + SLACK >= known:
        left -= postings[first].bound
        first += 1
    rows = np.concatenate([posting.rows for posting in postings[:first]])
    scores = np.concatenate([posting.scores for posting in postings[:first]])
    if len(rows) * SPARSE > num_documents:
        sums = np.bincount(rows, scores, minlength=num_documents)
        rows = np.flatnonzero(sums >= max(known - left - SLACK, SLACK))
        scores = sums[rows]
    else:
        rows, places = np.unique(rows, return_inverse=True)
        scores = np.bincount(places, scores)
        ahead = scores >= known - left - SLACK
        rows, scores = rows[ahead], scores[ahead]
    return rows, sum((posting.at(rows) for posting in postings[first:]), scores)
