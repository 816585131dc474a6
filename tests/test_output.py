"""Output that cannot be written is dropped, and the writer lives on."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from podium.output import open_dropping

FULL = """
import logging, resource, sys
from podium.output import dropping_output, say_at_once

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

with dropping_output():
    logging.basicConfig()
    print("one", flush=True)
    limit(0)
    print("two", "x" * 20_000)
    sys.stderr.write("lost\\n")
    say_at_once("lost\\n")
    logging.warning("lost")
    limit(resource.RLIM_INFINITY)
    print("three")
print("four")
sys.exit(7)
"""


def test_what_finds_no_room_is_dropped_and_the_next_lines_appear(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        done = subprocess.run([sys.executable, "-c", FULL], stdout=file, stderr=file, timeout=600, check=False)
    assert done.returncode == 7
    assert (tmp_path / "out").read_text().split() == ["one", "three", "four"]


def test_a_reader_who_has_gone_is_told() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "from podium.output import drop_output; drop_output(); print('x', flush=True)"
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, timeout=600, check=False)
    os.close(writer)
    assert b"BrokenPipeError" in done.stderr


def test_a_log_file_outlives_a_full_disk(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_dropping(tmp_path / "log") as log:
        log.write("one\n")
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            log.write("two\n")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        log.write("three\n")
    with open_dropping(tmp_path / "log") as log:
        log.write("four\n")
    assert (tmp_path / "log").read_text().split() == ["one", "three", "four"]


def test_streams_that_somebody_replaced_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    from podium.output import dropping_output

    mine = sys.stdout
    with dropping_output():
        assert sys.stdout is mine
