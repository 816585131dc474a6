from __future__ import annotations

import json
import random
from pathlib import Path

import bm25s
import numpy as np
import pytest

from podium.errors import ConfigError, DataError
from podium.retrieval.corpus import Document, make_document, read_corpus
from podium.retrieval.index import BM25Index, words_of

WORDS = [f"w{number}" for number in range(60)]


def random_documents(count: int, seed: int = 0) -> list[Document]:
    """Frequent and rare words, as in texts."""
    rng = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(len(WORDS))]
    return [
        Document(str(n), rng.choice(WORDS), " ".join(rng.choices(WORDS, weights, k=rng.randint(3, 40))))
        for n in range(count)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_the_top_k_are_exactly_those_of_all_scores(seed: int) -> None:
    """Against bm25s's own scores of every document."""
    documents, rng = random_documents(700, seed), random.Random(seed)
    index = BM25Index(documents)
    reference = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
    reference.index([words_of(d.contents) for d in documents], show_progress=False)
    for topk in (1, 3, 10, 200):
        query = rng.choices(WORDS, k=rng.randint(1, 8))
        scores = reference.get_scores(query)
        best = sorted(range(len(documents)), key=lambda row: (-np.float32(scores[row]), row))
        best = [row for row in best if scores[row] > 0][:topk]
        found = index.search([" ".join(query)], topk)[0]
        assert [score for _, score in found] == pytest.approx([float(scores[row]) for row in best], rel=1e-5)
        # equal scores may differ in the last bit of a float32 sum; among clearly different ones the order is fixed
        clear = [row for row in best if sum(abs(scores[row] - s) < 1e-5 for s in scores) == 1]
        assert set(clear) <= {int(document.id) for document, _ in found}


def test_ties_go_to_the_document_that_stands_first() -> None:
    documents = [Document(str(n), "same", "text") for n in range(5)]
    assert [document.id for document, _ in BM25Index(documents).search(["same"], 3)[0]] == ["0", "1", "2"]


def test_a_query_without_a_known_word_finds_nothing() -> None:
    index = BM25Index(random_documents(10))
    assert index.search(["unheard", "", "!?", "w0"], 0) == [[], [], [], []]
    assert [bool(found) for found in index.search(["unheard", "", "!?", "w0"], 3)] == [False, False, False, True]


def test_a_corpus_without_words_is_refused() -> None:
    with pytest.raises(ConfigError, match="no document of the corpus has a word"):
        BM25Index([Document("0", "", "!")])


def test_both_forms_of_corpus_rows_are_read(tmp_path: Path) -> None:
    rows = [{"id": 7, "title": "A", "text": "b c"}, {"id": "8", "contents": '"Quoted"\nd e'}]
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    first, second = read_corpus(str(path))
    assert first == Document("7", "A", "b c")
    assert second == Document("8", "Quoted", "d e")
    assert first.record() == {"id": "7", "title": "A", "contents": "A\nb c"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "line 2: not valid JSON"),
        ("[]", "line 2: a document must be an object"),
        ('{"id": 1}', "line 2: a document needs 'text'"),
    ],
)
def test_a_bad_corpus_row_is_named(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": 0, "title": "a", "text": "b"}\n' + text + "\n")
    with pytest.raises(DataError, match=reason):
        read_corpus(str(path))


def test_no_corpus_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_corpus(str(tmp_path / "none.jsonl"))
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="no documents"):
        read_corpus(str(tmp_path / "empty.jsonl"))
    with pytest.raises(DataError, match="has no corpus"):
        read_corpus("task:addition")


def test_the_built_in_corpus_answers_the_built_in_questions() -> None:
    from podium.data.tasks import get_task

    documents = read_corpus("task:search")
    index = BM25Index(documents)
    titles = {
        title for row in get_task("search").rows("val", 64) for title in row["reward_model"]["ground_truth"]["titles"]
    }
    found = index.search(sorted(titles), 1)
    assert [each[0][0].title for each in found] == sorted(titles)
    assert make_document(documents[0].record(), "x") == documents[0]
