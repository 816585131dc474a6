"""TRL 1.12's documented PPO script, its import changed, runs through the door. (`make test-trl`: with TRL too.)"""

from __future__ import annotations

import json
import re
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "recipes" / "trl" / "ppo.py"


class Dataset(list[dict[str, Any]]):
    """As much of `datasets.Dataset` as the script uses, where the package is not installed."""

    @classmethod
    def from_json(cls, path: str) -> Dataset:
        return cls(json.loads(line) for line in Path(path).read_text().splitlines())

    @property
    def column_names(self) -> list[str]:
        return list(self[0])

    def map(self, function: Any, remove_columns: list[str]) -> Dataset:
        return Dataset({k: v for k, v in row.items() if k not in remove_columns} | function(row) for row in self)


def run(script: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", [str(script), *words])
    return runpy.run_path(str(script), run_name="__main__")


def test_only_the_import_names_podium() -> None:
    lines = [line for line in SCRIPT.read_text().split('"""')[2].splitlines() if "podium" in line.lower()]
    assert len(lines) == 1
    assert re.match(r"from podium import PPOConfig, PPOTrainer  # TRL: from trl\.experimental\.ppo import", lines[0])


def test_the_script_runs_and_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        import datasets  # noqa: F401
    except ImportError:
        stand_in = types.ModuleType("datasets")
        stand_in.Dataset = Dataset  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "datasets", stand_in)
    models, out = str(tmp_path / "models"), tmp_path / "out"
    run(SCRIPT.with_name("prepare.py"), monkeypatch, models, "2")
    names = run(SCRIPT, monkeypatch, models, str(out), "512")
    state = names["trainer"].state
    assert (state.global_step, state.episode) == (2, 512)
    assert [entry["val/num_eos_tokens"] > 0 for entry in state.log_history if "episode" in entry] == [True, True]
    assert (out / "model.safetensors").is_file() and (out / "config.json").is_file()
    names["trainer"].close()
