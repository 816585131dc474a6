"""A real Chromium against a real server. Collected only by `make test-browser`, which installs what is needed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser_places import ARTEFACTS, ROOT

sys.path.insert(0, str(ROOT / "tests" / "dashboard"))
collect_ignore_glob = [] if os.environ.get("PODIUM_BROWSER") else ["test_*.py"]

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SIZES = {"laptop": {"width": 1360, "height": 860}, "phone": {"width": 390, "height": 844}}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """A page of some size and theme. Errors in its console, script errors and requests elsewhere fail the test."""
    problems: list[str] = []
    contexts = []

    def watch(page: Page) -> None:
        page.on("pageerror", lambda error: problems.append(f"script error: {error}"))
        page.on("console", lambda line: problems.append(f"console: {line.text}") if line.type == "error" else None)
        page.on(
            "request",
            lambda request: (
                None if "//127.0.0.1:" in request.url else problems.append(f"request elsewhere: {request.url}")
            ),
        )

    def make(url: str, size: str = "laptop", theme: str = "light") -> Page:
        context = browser.new_context(viewport=SIZES[size], color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        watch(page)
        page.goto(url)
        return page

    yield make
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def serve_folder() -> Iterator[Callable[[Path], str]]:
    """A dashboard over a folder, in a process of its own; gives its address."""
    from podium.dashboard.server import Beside

    with contextlib.ExitStack() as stack:

        def start(folder: Path) -> str:
            beside = Beside(folder)
            stack.callback(beside.close)
            return beside.address.url

        yield start


@pytest.fixture
def keep() -> Callable[[Page, str], Path]:
    """Keep a screenshot."""

    def shoot(page: Page, name: str) -> Path:
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        path = ARTEFACTS / f"{name}.png"
        page.screenshot(path=path)
        return path

    return shoot


@pytest.fixture(scope="session")
def figures() -> Iterator[dict[str, Any]]:
    """Numbers that the tests measured, kept beside the screenshots."""
    numbers: dict[str, Any] = {}
    yield numbers
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    (ARTEFACTS / "figures.json").write_text(json.dumps(numbers, indent=1) + "\n")
