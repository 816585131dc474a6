"""A growing file is read line by line, each line once, and from the start when it was replaced."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from podium.dashboard import follow
from podium.dashboard.follow import GrowingFile, Records, read_tail


def new_lines(reader: GrowingFile, path: Path) -> list[bytes]:
    with path.open("rb") as file:
        return [line for block in reader.new_blocks(file) for line in block.lines()]


def test_only_new_and_complete_lines_are_read(tmp_path: Path) -> None:
    path, reader = tmp_path / "a", GrowingFile()
    path.write_bytes(b"one\ntwo\nthr")
    assert new_lines(reader, path) == [b"one", b"two"]
    assert new_lines(reader, path) == []
    with path.open("ab") as file:
        file.write(b"ee\nfour\n")
    assert new_lines(reader, path) == [b"three", b"four"]


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=20), st.data())
def test_however_a_file_grows_its_lines_come_once_and_in_order(lines: list[bytes], data: st.DataObject) -> None:
    content = b"".join(line + b"\n" for line in lines)
    cuts = [*sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=5))), len(content)]
    with tempfile.TemporaryDirectory() as folder:
        path, reader, found = Path(folder) / "a", GrowingFile(), []
        for cut in cuts:
            path.open("ab").close()
            with path.open("rb+") as file:
                file.seek(0, 2)
                file.write(content[file.tell() : cut])
            found += new_lines(reader, path)
    assert found == lines


def test_a_line_longer_than_a_block_is_read_whole(tmp_path: Path) -> None:
    path, reader = tmp_path / "a", GrowingFile()
    long = b"x" * (follow.BLOCK_BYTES + 10)
    path.write_bytes(b"first\n" + long + b"\nlast\n")
    assert [len(line) for line in new_lines(reader, path)] == [5, len(long), 4]


def test_a_file_replaced_by_another_is_read_again(tmp_path: Path) -> None:
    path, records = tmp_path / "events.jsonl", Records()
    path.write_text('{"n": 1}\n{"n": 2}\n')
    assert [record["n"] for record in records.refresh(path)] == [1, 2]
    other = tmp_path / "other"
    other.write_text('{"n": 7}\n{"n": 8}\n{"n": 9}\n')
    other.replace(path)
    assert [record["n"] for record in records.refresh(path)] == [7, 8, 9]


def test_a_file_rewritten_in_place_is_read_again(tmp_path: Path) -> None:
    path, records = tmp_path / "events.jsonl", Records()
    path.write_text('{"n": 1}\n{"n": 2}\n')
    records.refresh(path)
    path.write_text('{"n": 3}\n')
    assert [record["n"] for record in records.refresh(path)] == [3]


def test_damaged_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    path, records = tmp_path / "events.jsonl", Records()
    path.write_bytes(b'{"n": 1}\nnot json\n[1]\n\xff\xfe\n' + b"[" * 100_000 + b'\n{"n": 2}\n')
    assert [record["n"] for record in records.refresh(path)] == [1, 2]
    assert records.num_damaged == 4


def test_the_tail_of_a_file_is_complete_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(1000)) + "half")
    tail = read_tail(path, 100)
    assert tail.endswith(b"line 999\n")
    assert all(json.loads(line.split()[1]) > 980 for line in tail.splitlines())
