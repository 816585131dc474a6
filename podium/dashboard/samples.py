"""The samples of a dump: pages in file order, filters and orders, groups of one prompt, one prompt over the steps.

A dump is a file of one JSON object a line, written whole. The places of its lines are found by a scan for newlines,
so a first page costs nothing but that; a table of what can be filtered and sorted is made when somebody filters or
sorts. Texts are cut to excerpts in lists and are whole in the view of one sample.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from podium.dashboard.follow import BLOCK_BYTES, GrowingFile, parse_object

EXCERPT_CHARS = 600
SORTS = ("order", "score", "length", "source")
GROUP_SORTS = ("order", "mean", "spread", "length")


@dataclass(frozen=True)
class Query:
    """What to show of a dump."""

    sort: str = "order"
    descending: bool = False
    source: str | None = None
    stop_reason: str | None = None
    uid: str | None = None
    text: str = ""
    min_score: float | None = None
    max_score: float | None = None
    scored: bool | None = None
    """False: only samples without a score."""

    @property
    def is_plain(self) -> bool:
        return self == Query()


class Row(NamedTuple):
    """What can be filtered and sorted of a sample."""

    line: int
    score: float | None
    length: int
    source: str
    stop_reason: str
    uid: str


class SampleFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.starts = _line_starts(path)
        self._rows: list[Row] | None = None
        self._lock = threading.Lock()

    @property
    def num_samples(self) -> int:
        return len(self.starts) - 1

    def rows(self) -> list[Row]:
        """The table, made once."""
        with self._lock:
            if self._rows is None:
                self._rows = [row for number, line in self._lines() if (row := _row(number, line)) is not None]
            return self._rows

    def record(self, line: int) -> dict[str, Any] | None:
        """One sample, whole."""
        if not 0 <= line < self.num_samples:
            return None
        start, end = int(self.starts[line]), int(self.starts[line + 1])
        with self.path.open("rb") as file:
            return parse_object(os.pread(file.fileno(), end - start, start))

    def select(self, query: Query) -> Sequence[int]:
        """The lines a query asks for, in its order."""
        if query.is_plain:
            return range(self.num_samples)
        rows = [row for row in self.rows() if _matches(row, query)]
        if query.text:
            holding = self._lines_with(query.text)
            rows = [row for row in rows if row.line in holding]
        if query.sort != "order":
            rows.sort(key=_order(query.sort), reverse=query.descending)
            if query.sort == "score":  # a sample without a score stands last either way
                rows.sort(key=lambda row: row.score is None)
        elif query.descending:
            rows.reverse()
        return [row.line for row in rows]

    def page(self, lines: Sequence[int]) -> list[dict[str, Any]]:
        """Excerpts of some samples."""
        records = ((line, self.record(line)) for line in lines)
        return [excerpt(line, record) for line, record in records if record is not None]

    def lines_of_prompt(self, uid: str) -> list[int]:
        """The samples of a prompt, found by the bytes of its uid."""
        needle = b'"uid": ' + json.dumps(uid, ensure_ascii=False).encode("utf-8", "backslashreplace")
        return [number for number, line in self._lines() if needle in line]

    def facets(self) -> dict[str, Any]:
        """What there is to filter by, with counts, and how the scores are spread."""
        rows = self.rows()
        scores = [row.score for row in rows if row.score is not None]
        return {
            "total": len(rows),
            "unscored": len(rows) - len(scores),
            "sources": _counts(row.source for row in rows),
            "stop_reasons": _counts(row.stop_reason for row in rows),
            "num_prompts": len({row.uid for row in rows}),
            "score_mean": sum(scores) / len(scores) if scores else None,
            "length_mean": sum(row.length for row in rows) / len(rows) if rows else None,
            "histogram": histogram(scores),
        }

    def groups(self, query: Query, sort: str, descending: bool) -> list[dict[str, Any]]:
        """The prompts of the dump with the scores of their samples; a query keeps prompts with a sample it matches."""
        wanted = {row.uid for row in self.rows() if _matches(row, query)}
        if query.text:
            holding = self._lines_with(query.text)
            wanted &= {row.uid for row in self.rows() if row.line in holding}
        members: dict[str, list[Row]] = {}
        for row in self.rows():
            if row.uid in wanted:
                members.setdefault(row.uid, []).append(row)
        groups = [_group(uid, rows) for uid, rows in members.items()]
        if sort != "order":
            groups.sort(key=lambda group: -math.inf if group[sort] is None else group[sort], reverse=descending)
        elif descending:
            groups.reverse()
        return groups

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        number = 0
        with self.path.open("rb") as file:
            for block in GrowingFile().new_blocks(file):
                for line in block.lines():
                    yield number, line
                    number += 1

    def _lines_with(self, text: str) -> set[int]:
        """Samples with the text in them, upper and lower case alike (of ASCII letters)."""
        needle = json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "backslashreplace").lower()
        return {number for number, line in self._lines() if needle in line.lower()}


def excerpt(line: int, record: dict[str, Any]) -> dict[str, Any]:
    """What a list shows of a sample."""
    return {
        "line": line,
        "input": cut(_text(record.get("input")), EXCERPT_CHARS),
        "output": cut(_text(record.get("output")), EXCERPT_CHARS),
        "score": _number(record.get("score")),
        "gts": cut(_text(record.get("gts")), 200),
        "length": _length(record),
        "num_tokens": len(record["tokens"]) if isinstance(record.get("tokens"), list) else None,
        "uid": _text(record.get("uid")),
        "data_source": _text(record.get("data_source")),
        "stop_reason": _text(record.get("stop_reason")),
        "turns": record.get("turns"),
        "policy_version": record.get("policy_version"),
    }


def cut(text: str, limit: int) -> str:
    """The beginning and the end of a long text."""
    return text if len(text) <= limit else f"{text[: limit // 2]} … {text[-limit // 2 :]}"


def histogram(scores: Sequence[float], max_bins: int = 24) -> dict[str, Any] | None:
    """Counts over equal steps of the score; a bar each where there are few different scores."""
    if not scores:
        return None
    low, high = min(scores), max(scores)
    if low == high:
        return {"edges": [low, high], "counts": [len(scores)]}
    counts, edges = np.histogram(
        np.array(scores, dtype=np.float64), bins=max(2, min(max_bins, len(set(scores)))), range=(low, high)
    )
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _line_starts(path: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where each complete line begins, and where the last one ends."""
    parts = [np.zeros(1, dtype=np.int64)]
    with path.open("rb") as file:
        position = 0
        while data := os.pread(file.fileno(), BLOCK_BYTES, position):
            parts.append(np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == 10) + (position + 1))
            position += len(data)
    return np.concatenate(parts)


def _row(number: int, line: bytes) -> Row | None:
    record = parse_object(line)
    if record is None:
        return None
    source, stop_reason, uid = (sys.intern(_text(record.get(key))) for key in ("data_source", "stop_reason", "uid"))
    return Row(number, _number(record.get("score")), _length(record), source, stop_reason, uid)


def _matches(row: Row, query: Query) -> bool:
    if query.source is not None and row.source != query.source:
        return False
    if query.stop_reason is not None and row.stop_reason != query.stop_reason:
        return False
    if query.uid is not None and row.uid != query.uid:
        return False
    if query.scored is not None and (row.score is not None) != query.scored:
        return False
    if query.min_score is not None and (row.score is None or row.score < query.min_score):
        return False
    return query.max_score is None or (row.score is not None and row.score <= query.max_score)


def _order(sort: str) -> Any:
    if sort == "length":
        return lambda row: row.length
    return (lambda row: row.score or 0.0) if sort == "score" else (lambda row: row.source)


def _group(uid: str, rows: Sequence[Row]) -> dict[str, Any]:
    scores = [row.score for row in rows if row.score is not None]
    mean = sum(scores) / len(scores) if scores else None
    spread = None if mean is None else math.sqrt(sum((score - mean) ** 2 for score in scores) / len(scores))
    return {
        "uid": uid,
        "size": len(rows),
        "mean": mean,
        "spread": spread,
        "length": sum(row.length for row in rows) / len(rows),
        "source": rows[0].source,
        "samples": [{"line": row.line, "score": row.score, "length": row.length} for row in rows[:256]],
    }


def _counts(words: Iterator[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1])[:200])


def _length(record: dict[str, Any]) -> int:
    """Characters: every sample has them, while only some carry their tokens."""
    return len(_text(record.get("output")))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        return None
    return float(value) if math.isfinite(value) else None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)
