"""What README and guides say: examples run, links lead somewhere, the Chinese page keeps step with the English one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from podium.cli.main import GROUPS
from podium.config import load_config
from tests.docs.doc_blocks import ROOT, blocks_of, follow

PAGES = sorted([*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_python_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (python,) = [block for block in blocks_of(ROOT / "README.md") if block.kind == "python"]
    exec(compile(python.text, "README.md", "exec"), {"__name__": "__main__"})
    assert Path("my-model/model.safetensors").is_file() and Path("runs/mine/metrics.jsonl").is_file()


def test_the_yaml_example_of_the_readme_is_a_recipe(tmp_path: Path) -> None:
    (recipe,) = [block for block in blocks_of(ROOT / "README.md") if block.kind == "yaml"]
    (tmp_path / "my.yaml").write_text(recipe.text, encoding="utf-8")
    assert load_config(tmp_path / "my.yaml").trainer.n_gpus_per_node == 8


def test_the_quickstart_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    of_the_first_run = ("make", "podium runs", "podium dashboard", "podium generate", "podium eval", "podium export")
    follow(ROOT / "docs" / "quickstart.md", monkeypatch, skip=of_the_first_run)
    assert Path("runs/podium/mine/checkpoints/global_step_2/hf/model.safetensors").is_file()


def test_the_chinese_readme_has_the_same_parts_blocks_and_rows() -> None:
    english, chinese = ROOT / "README.md", ROOT / "README.zh-CN.md"

    def outline(page: Path) -> dict[str, object]:
        text = page.read_text(encoding="utf-8")
        lines = [line for block in blocks_of(page) if block.kind != "sh" for line in block.text.splitlines()]
        return {
            "headings": [line.count("#", 0, 3) for line in text.splitlines() if line.startswith("#")],
            "code": [re.sub(r"\s*#.*", "", line) for line in lines],
            "links": sorted(link for link in LINK.findall(text) if "README" not in link),
            "rows": sum(line.startswith("|") for line in text.splitlines()),
            "numbers": sorted(set(re.findall(r"\d+\.\d+", text))),
        }

    assert outline(english) == outline(chinese)


def test_commands_in_the_docs_exist() -> None:
    known = {name for group in GROUPS for name in group}
    for page in PAGES:
        for block in blocks_of(page):
            if block.kind == "sh":
                used = set(re.findall(r"^podium ([a-z-]+)", block.text, re.MULTILINE))
                assert used <= known, f"{page.name}: {used - known}"
