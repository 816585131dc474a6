"""The fenced blocks of a page: files by their title, and commands."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from podium.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    kind: str
    title: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    return [Block(*match.groups(default="")) for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def follow(page: Path, monkeypatch: pytest.MonkeyPatch, skip: tuple[str, ...] = ()) -> None:
    """Write the page's files and type its commands, in order, in the current folder."""
    for block in blocks_of(page):
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.kind == "sh":
            for line in filter(None, map(str.strip, block.text.splitlines())):
                if not line.startswith(skip or ("#",)):
                    type_command(line, monkeypatch)


def type_command(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: what the shell would start takes seconds to import."""
    program, *words = shlex.split(line, comments=True)
    if program == "podium":
        assert main(words) == 0, line
    else:
        assert program == "python", f"the docs use podium and python, not {line!r}"
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", words)
            runpy.run_path(words[0], run_name="__main__")
