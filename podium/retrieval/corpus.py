"""A corpus: documents with a title and a text, from a jsonl file or made by a built-in task.

Rows are `{"id", "title", "text"}`, or Search-R1's `{"id", "contents"}` with the title on the first line. A row that is
neither is an error that names its line. Nothing is indexed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podium.data.tasks import is_task_word, parse_task_word
from podium.errors import DataError


@dataclass(frozen=True, slots=True)
class Document:
    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        return f"{self.title}\n{self.text}"

    def record(self) -> dict[str, str]:
        """As the server sends it."""
        return {"id": self.id, "title": self.title, "contents": self.contents}


def make_document(row: Any, place: str) -> Document:
    """A corpus row, or a document that a server sent; `place` names it in errors."""
    if not isinstance(row, dict):
        raise DataError(f"{place}: a document must be an object, not {type(row).__name__}")
    title, text, contents = row.get("title"), row.get("text"), row.get("contents")
    if text is None and isinstance(contents, str):
        first, _, text = contents.partition("\n")
        title = title if isinstance(title, str) else first.strip('"')
    if not isinstance(text, str):
        raise DataError(f"{place}: a document needs 'text', or 'contents' with the title on its first line")
    return Document(str(row.get("id", place)), str(title or ""), text)


def read_corpus(word: str) -> list[Document]:
    """The documents of a jsonl file, or of `task:search`."""
    if is_task_word(word):
        task: Any = parse_task_word(word).task
        if not hasattr(task, "corpus"):
            raise DataError(f"retriever.corpus = {word!r}: the task {task.name} has no corpus; task:search has one")
        return from_rows(task.corpus(), word)
    path = Path(word).expanduser()
    if not path.is_file():
        raise DataError(f"the corpus {word!r} does not exist (looked for {path.absolute()}); give a jsonl file")
    with path.open(encoding="utf-8") as lines:
        documents = [_parse(line, f"{word}, line {n}") for n, line in enumerate(lines, start=1) if line.strip()]
    return _not_empty(documents, word)


def from_rows(rows: Iterable[Any], name: str) -> list[Document]:
    return _not_empty([make_document(row, f"{name}, document {n}") for n, row in enumerate(rows)], name)


def _parse(line: str, place: str) -> Document:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place}: not valid JSON ({error})") from error
    return make_document(row, place)


def _not_empty(documents: Sequence[Document], name: str) -> list[Document]:
    if not documents:
        raise DataError(f"the corpus {name!r} has no documents")
    return list(documents)
