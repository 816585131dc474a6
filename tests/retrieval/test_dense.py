"""Search by meaning, with a tiny random sentence-transformers folder; needs the `dense` extra."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from podium.errors import ConfigError
from podium.retrieval.corpus import Document
from podium.retrieval.index import make_index

DOCUMENTS = [Document(str(n), f"title {n}", f"{word} " * 5) for n, word in enumerate(("red", "green", "blue", "grey"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    pytest.importorskip("faiss")
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    place = tmp_path_factory.mktemp("dense")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "title", "red", "green", "blue", "grey", "0", "1", "2", "3"]
    tokenizer = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    BertModel(config).save_pretrained(place / "bert")
    wrapped.save_pretrained(place / "bert")
    from sentence_transformers.sentence_transformer import modules

    transformer = modules.Transformer(str(place / "bert"))
    pooling = modules.Pooling(32, pooling_mode="mean")
    sentence_transformers.SentenceTransformer(modules=[transformer, pooling]).save(str(place / "model"))
    return place / "model"


def test_each_document_is_nearest_to_itself(folder: Path) -> None:
    index = make_index(DOCUMENTS, str(folder))
    found = index.search([document.contents for document in DOCUMENTS], topk=2)
    assert [each[0][0] for each in found] == DOCUMENTS
    assert np.allclose([each[0][1] for each in found], 1.0, atol=1e-4)
    assert all(each[0][1] >= each[1][1] for each in found)


def test_no_more_documents_than_there_are(folder: Path) -> None:
    index = make_index(DOCUMENTS, str(folder))
    assert len(index.search(["red"], topk=100)[0]) == 4
    assert index.search(["red"], topk=0) == [[]] and index.search([], topk=3) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"retriever\.dense_model = .* there is no such folder"):
        make_index(DOCUMENTS, str(tmp_path / "none"))
