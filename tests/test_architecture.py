"""The rules of the house that a reader could otherwise only hope for."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from podium.config import schema

ROOT = Path(__file__).parent.parent / "podium"
FILES = sorted(ROOT.rglob("*.py"))
MAX_FILE_LINES, MAX_FUNCTION_LINES = 500, 80

# From the ground up; a room may import from its own floor and from those below.
FLOORS: list[set[str]] = [
    {"errors", "metric", "output", "stop_points"},
    {"plugins"},
    {"protocol", "wire"},
    {"config"},
    {"algorithms"},
    {"data"},
    {"retrieval"},
    {"models"},
    {"engines"},
    {"rewards"},
    {"agents"},
    {"checkpoint", "tracking"},
    {"dashboard", "serving"},
    {"single_controller"},
    {"workers"},
    {"trainer"},
    {"api", "checks"},
    {"cli"},
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_downwards_only(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if room == "__init__":
        return
    assert room in FLOOR_OF, f"{room} is not in the list of floors"
    for module in imported_modules(path):
        if module.startswith("podium."):
            other = module.split(".")[1]
            assert FLOOR_OF[other] <= FLOOR_OF[room], f"{path.name} imports {module} from a floor above"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_ray_is_imported_only_under_single_controller(path: Path) -> None:
    if "single_controller" not in path.parts:
        assert not [m for m in imported_modules(path) if m.split(".")[0] == "ray"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno + 1 <= MAX_FUNCTION_LINES, f"{node.name} is too long"


def test_importing_podium_loads_neither_torch_nor_ray() -> None:
    code = "import podium, sys; print([m for m in ('torch', 'ray', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "[]"


def test_every_public_name_resolves() -> None:
    import podium

    for name in podium.__all__:
        assert getattr(podium, name) is not None


def leaf_fields(kind: type) -> Iterator[str]:
    for field in dataclasses.fields(kind):
        nested = getattr(schema, str(field.type), None)
        if dataclasses.is_dataclass(nested) and isinstance(nested, type):
            yield from leaf_fields(nested)
        else:
            yield field.name


def test_every_configuration_key_is_read_by_somebody() -> None:
    read = {
        node.attr
        for path in FILES
        if path != ROOT / "config" / "schema.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert set(leaf_fields(schema.Config)) - read - {"extra"} == set()
