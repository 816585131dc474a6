"""Search by meaning: a sentence-transformers folder embeds documents and queries, FAISS finds the nearest.

The search is exact (a flat inner-product index over normalized vectors). Needs the `dense` extra; nothing is
downloaded: the model is a folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from podium.errors import ConfigError
from podium.retrieval.corpus import Document
from podium.retrieval.index import Found

BATCH = 64


class DenseIndex:
    def __init__(self, documents: Sequence[Document], model: str) -> None:
        """`model`: the sentence-transformers folder."""
        folder = Path(model).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"retriever.dense_model = {model!r}: there is no such folder")
        try:
            import faiss
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ConfigError(
                f"dense search needs {error.name}, which is not installed: pip install 'podium[dense]'"
            ) from error
        self.documents = documents
        self._encoder = SentenceTransformer(str(folder), local_files_only=True)
        vectors = self._embed([document.contents for document in documents])
        self._index: Any = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(vectors)

    def search(self, queries: Sequence[str], topk: int) -> list[Found]:
        if not queries or topk < 1:
            return [[] for _ in queries]
        scores, places = self._index.search(self._embed(list(queries)), min(topk, len(self.documents)))
        return [
            [(self.documents[int(place)], float(score)) for score, place in zip(row, found, strict=True)]
            for row, found in zip(scores, places, strict=True)
        ]

    def _embed(self, texts: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        vectors = self._encoder.encode(
            texts, batch_size=BATCH, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
        )
        return np.ascontiguousarray(vectors, dtype=np.float32)
