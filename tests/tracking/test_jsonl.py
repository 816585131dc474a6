"""One JSON object per line, whole or not at all."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.tracking.jsonl import JsonLines, read_lines, write_lines


def test_a_line_is_in_the_file_when_append_returns(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "x.jsonl")
    lines.append({"step": 1, "text": "a\nb"})
    assert (tmp_path / "x.jsonl").read_text() == '{"step": 1, "text": "a\\nb"}\n'


@pytest.mark.parametrize("tail", ['{"step": 3, "rew', "{", "\x00\x00", '{"step": 3}'])
def test_a_half_written_last_line_is_skipped_by_readers_and_cut_by_the_next_writer(tail: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n' + tail)
    assert [record["step"] for record in read_lines(path)] == [1, 2]
    lines = JsonLines(path)
    lines.append({"step": 4})
    assert [record["step"] for record in read_lines(path)] == [1, 2, 4]
    assert len(path.read_text().splitlines()) == 3


def test_a_file_that_is_one_long_partial_line_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("x" * 200_000)
    JsonLines(path).close()
    assert path.read_bytes() == b""
    path.write_text('{"a": 1}\n' + "x" * 200_000)
    JsonLines(path).close()
    assert path.read_bytes() == b'{"a": 1}\n'


def test_a_damaged_line_inside_a_file_is_skipped_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\ngarbage\n[1]\n{"a": 2}\n')
    assert [record["a"] for record in read_lines(path)] == [1, 2]
    assert "line 2" in caplog.text
    assert "line 3" in caplog.text


def test_numbers_arrays_and_odd_objects_become_json(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    record: dict[str, Any] = {"nan": float("nan"), "inf": np.float32("inf"), "array": np.array([1.5, np.nan])}
    record |= {"int": np.int64(3), "set": {7}, "path": Path("a"), "nested": {1: (True, None)}, "odd": "\ud800"}
    write_lines(path, [record])
    assert json.loads(path.read_text()) == {
        **{"nan": None, "inf": None, "array": [1.5, None], "int": 3, "set": [7], "path": "a"},
        **{"nested": {"1": [True, None]}, "odd": "\ud800"},
    }


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.text(max_size=5), st.text(max_size=10) | st.floats(allow_nan=False, allow_infinity=False))
    )
)
def test_what_is_written_reads_back(tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]]) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    write_lines(path, records)
    assert list(read_lines(path)) == records


def test_a_full_disk_delays_lines_and_harms_neither_the_run_nor_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.jsonl"
    lines = JsonLines(path)
    lines.append({"step": 1})
    with file_size_limit(20), caplog.at_level(logging.WARNING):
        lines.append({"step": 2, "filler": "x" * 50})
        lines.append({"step": 3, "filler": "x" * 50})
        with pytest.raises(OSError):
            lines.flush()
    lines.append({"step": 4})
    assert [record["step"] for record in read_lines(path)] == [1, 2, 3, 4]
    assert lines.delayed == 2
    assert caplog.text.count("cannot be written") == 1


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("size", [3, 200_000])
def test_the_last_line_can_be_completed(size: int, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = JsonLines(path)
    for step in (1, 2):
        lines.append({"step": step, "filler": "x" * size})
        lines.amend({"step": step, "filler": "y" * size, "more": 1})
    lines.amend({"step": 2})
    lines.append({"step": 3})
    assert list(read_lines(path)) == [{"step": 1, "filler": "y" * size, "more": 1}, {"step": 2}, {"step": 3}]


def test_a_line_that_cannot_be_completed_stands_and_the_whole_one_follows(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = JsonLines(path)
    lines.append({"step": 1})
    with file_size_limit(20):
        lines.amend({"step": 1, "filler": "x" * 50})
        assert path.read_text() == '{"step": 1}\n'
        lines.amend({"step": 1, "filler": "x" * 50, "more": 1})
    lines.append({"step": 2})
    assert list(read_lines(path)) == [{"step": 1}, {"step": 1, "filler": "x" * 50, "more": 1}, {"step": 2}]


def test_a_failed_dump_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write_lines(path, [{"a": 1}])

    def records() -> Any:
        yield {"a": 2}
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_lines(path, records())
    assert os.listdir(tmp_path) == ["x.jsonl"]
    assert list(read_lines(path)) == [{"a": 1}]
