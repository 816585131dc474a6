"""The tutorials run as they are written, and what they claim to teach is learned."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.docs.doc_blocks import ROOT, blocks_of, follow

TUTORIALS = ROOT / "docs" / "tutorials"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def numbers(text: str, sentence: str) -> list[float]:
    line = next(line for line in text.splitlines() if sentence in line)
    return [float(number) for number in re.findall(r"-?\d+\.\d+", line)]


def metrics(run: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


def test_grpo_in_ten_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = TUTORIALS / "01-grpo-in-ten-lines.md"
    (script,) = [block for block in blocks_of(page) if block.title]
    assert len([line for line in script.text.splitlines() if line.strip()]) == 10, "ten lines"
    follow(page, monkeypatch)
    before, after = numbers(capsys.readouterr().out, "right answers")
    assert after > before + 0.05


def test_ppo_with_a_reward_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    follow(TUTORIALS / "02-ppo-with-a-reward-model.md", monkeypatch)
    first, last = numbers(capsys.readouterr().out, "the judge's score")
    assert last > first


def test_search(monkeypatch: pytest.MonkeyPatch) -> None:
    follow(TUTORIALS / "03-search.md", monkeypatch)
    steps = [record for record in metrics("runs/podium/my-search") if "env/number_of_valid_search" in record]
    assert len(steps) == 2 and all(record["env/number_of_valid_search"] > 0 for record in steps)
    assert 0 < steps[-1]["state_tokens/coverage"] < 1


def test_an_environment_of_your_own(monkeypatch: pytest.MonkeyPatch) -> None:
    follow(TUTORIALS / "04-custom-environment.md", monkeypatch)
    scores = [
        record["val/test_score/addition"]
        for record in metrics("runs/podium/game")
        if "val/test_score/addition" in record
    ]
    assert scores[-1] > scores[0] + 0.05
