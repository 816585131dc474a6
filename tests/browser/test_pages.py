"""Every view: what it shows, how it is used with pointer and keys, and that nothing sticks out at any width."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser_places import ARTEFACTS, AXE, PICTURE
from dashboard_runs import sample, search_sample, token_sample, write_lines, write_run
from playwright.sync_api import Page, expect

LONG_TEXT = "a very long line without a space: " + "x" * 3000 + "\n" + "and many lines\n" * 400
VIEWS = {
    "runs": "#/runs",
    "curves": "#/curves?run=podium/grpo-seed-1&run=podium/rloo&run=podium/ppo-gae&smooth=0.6",
    "family": "#/curves?run=podium/grpo-seed-1&q=^(critic|perf|actor)&log=1",
    "no-match": "#/curves?run=podium/grpo-seed-1&q=nothing",
    "samples": "#/samples?run=podium/grpo-seed-1&sort=score&desc=1",
    "sample": "#/samples?run=podium/grpo-seed-1&line=1",
    "tokens": "#/samples?run=podium/grpo-seed-1&line=0",
    "long-text": "#/samples?run=podium/grpo-seed-1&line=2",
    "groups": "#/samples?run=podium/grpo-seed-1&step=1&group=1",
    "timeline": "#/timeline?run=podium/grpo-seed-1",
    "events": "#/events?run=podium/crashed-run-with-a-rather-long-name-of-its-own",
    "config": "#/config?run=podium/grpo-seed-1&run=podium/rloo",
    "system": "#/system?run=podium/grpo-seed-1",
    "unknown-run": "#/curves?run=podium/none",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of every status, with samples of every kind."""
    root = tmp_path_factory.mktemp("pages") / "runs" / "podium"
    first = write_run(root / "grpo-seed-1", steps=120, total=200, finished=False)
    special = [token_sample(120, 0), search_sample(120, 1), sample(120, 2, output=LONG_TEXT, score=None)]
    write_lines(
        first / "rollouts" / "120.jsonl", special + [sample(120, row, k) for row in range(3, 9) for k in range(4)]
    )
    write_run(root / "rloo", steps=160, seed=1)
    write_run(root / "ppo-gae", steps=90, total=160, seed=2, finished=False)
    broken = write_run(root / "crashed-run-with-a-rather-long-name-of-its-own", steps=40, total=100, finished=False)
    write_lines(
        broken / "events.jsonl",
        [
            {"time": time.time() - 60, "kind": "non_finite_metrics", "step": 38, "metrics": {"actor/grad_norm": "nan"}},
            {"time": time.time() - 20, "kind": "worker_died", "step": 40, "role": "actor", "rank": 1},
        ],
        mode="a",
    )
    with (broken / "console.log").open("a") as file:
        file.write(
            'Traceback (most recent call last):\n  File "x.py", line 1\nWorkerDied: actor worker, rank 1, is gone\n'
        )
    return root.parent


@pytest.fixture
def url(folder: Path, serve_folder: Callable[[Path], str]) -> str:
    """The address; one of the runs has just written, another has been silent for an hour."""
    os.utime(folder / "podium" / "grpo-seed-1" / "metrics.jsonl")
    silent = folder / "podium" / "ppo-gae"
    for path in (silent, *silent.iterdir()):
        os.utime(path, (time.time() - 3600, time.time() - 3600))
    return serve_folder(folder)


def settle(page: Page) -> None:
    page.wait_for_load_state("domcontentloaded")
    expect(page.locator("main > *").first).to_be_attached()
    page.wait_for_timeout(700)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", ["laptop", "phone"])
def test_every_view_is_accessible_fits_its_window_and_is_photographed(
    size: str,
    theme: str,
    url: str,
    open_page: Callable[..., Page],
    keep: Callable[[Page, str], Path],
    figures: dict[str, Any],
) -> None:
    page = open_page(f"{url}{VIEWS['runs']}", size, theme)
    found = []
    for name, address in VIEWS.items():
        page.goto("about:blank")
        page.goto(f"{url}{address}")
        settle(page)
        width, room = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert width <= room, f"{name} is wider than its window: {width} > {room}"
        keep(page, f"{name}-{size}-{theme}")
        page.evaluate(AXE.read_text())  # evaluated by the driver, which the page's own policy does not bind
        for problem in page.evaluate("axe.run(document)")["violations"]:
            if problem["impact"] in ("serious", "critical"):
                found.append(f"{name}: {problem['id']}: {problem['nodes'][0]['html'][:160]}")
    figures[f"serious accessibility faults, {size} {theme}"] = len(found)
    assert found == []


def test_the_overview_names_each_status_and_sorts_and_filters(url: str, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{url}#/runs")
    badges = page.locator("tr[data-run] .badge")
    expect(badges).to_have_count(4)
    assert sorted(badges.all_inner_texts()) == ["crashed", "finished", "running", "stalled"]
    page.get_by_role("button", name="Reward").click()
    rewards = [float(text) for text in page.locator("td.cell-reward").all_inner_texts()]
    assert rewards == sorted(rewards, reverse=True)
    page.get_by_label("Filter runs").fill("rloo")
    expect(page.locator("tr[data-run]")).to_have_count(1)
    page.get_by_label("Filter runs").fill("")
    page.get_by_label("Choose podium/rloo").check()
    page.get_by_label("Choose podium/ppo-gae").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    expect(page.locator(".chip")).to_have_count(2)


def test_a_drag_zooms_all_charts_and_escape_undoes_it(url: str, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{url}#/curves?run=podium/rloo")
    chart = page.locator(".plot").first
    expect(chart.locator("path.line").first).to_be_visible()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 60)
    expect(chart.locator(".readout")).to_contain_text("step")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60, steps=5)
    page.mouse.up()
    expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()
    assert re.search(r"x=\d+-\d+", page.url)
    chart.focus()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Reset zoom")).to_be_hidden()


def test_a_chart_is_read_with_the_arrow_keys(url: str, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{url}#/curves?run=podium/rloo")
    expect(page.locator(".plot path.line").first).to_be_visible()
    page.locator(".plot").first.focus()
    page.keyboard.press("End")
    expect(page.locator("#announce")).to_contain_text("step 160")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#announce")).to_contain_text("step 159")
    page.keyboard.press("+")
    expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()


def test_smoothing_log_scale_and_pins(url: str, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{url}#/curves?run=podium/rloo")
    chart = page.locator(".chart-card").first
    expect(chart.locator("path.line")).to_have_count(1)
    page.get_by_label("Smoothing").fill("0.8")
    expect(chart.locator("path.line")).to_have_count(2)
    page.get_by_label("Log scale").check()
    assert "log=1" in page.url
    page.get_by_label("Pin actor/entropy to the top").first.click()
    expect(page.get_by_role("heading", name="Pinned")).to_be_visible()
    expect(page.locator(".chart-grid").first.locator(".chart-card")).to_have_count(1)
    page.get_by_label("Filter metrics").fill("critic score")
    expect(page.get_by_role("heading", name=re.compile("3 of"))).to_be_visible()


def test_samples_are_filtered_grouped_and_walked_by_keys(url: str, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{url}#/samples?run=podium/grpo-seed-1")
    expect(page.locator(".list-status")).to_have_text("27 samples at step 120")
    page.get_by_label("Search text").fill("capital of NORWAY")
    expect(page.locator(".list-status")).to_have_text("1 of 27 samples at step 120")
    page.locator(".sample-row").click()
    detail = page.locator(".detail")
    expect(detail.get_by_text("information (not written by the model)")).to_be_visible()
    expect(detail.get_by_role("row", name="exact_match 1")).to_be_visible()
    page.get_by_label("Search text").fill("")
    expect(page.locator(".sample-row")).to_have_count(27)
    page.locator(".sample-row").nth(3).focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".sample-row").nth(4)).to_be_focused()
    expect(detail.get_by_text("The 4 samples of this prompt")).to_be_visible()
    page.get_by_label("Close the sample").click()
    expect(detail).to_be_hidden()
    page.get_by_label("By prompt").check()
    expect(page.locator(".group-row")).to_have_count(9)
    page.get_by_role("button", name="validation").click()
    expect(page.locator(".list-status")).to_contain_text("4 prompts")


def test_tokens_are_coloured_where_the_dump_has_them(url: str, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{url}#/samples?run=podium/grpo-seed-1&line=0")
    tokens = page.locator(".token")
    expect(tokens).to_have_count(7)
    expect(tokens.nth(5)).to_have_class(re.compile("heat-n5"))
    page.get_by_label("Colour tokens by").select_option("advantages")
    expect(tokens.nth(4)).to_have_class(re.compile("heat-5"))
    page.get_by_label("Colour tokens by").select_option("response_mask")
    expect(tokens.nth(3)).to_have_class(re.compile("heat-masked"))
    tokens.nth(5).hover()
    expect(page.get_by_text("log-prob -4.8, advantage -1, mask 1")).to_be_visible()


def test_one_prompt_is_followed_over_the_steps(url: str, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{url}#/samples?run=podium/rloo&kind=validation&line=0")
    page.get_by_text("This prompt over the steps").click()
    expect(page.locator(".history-row")).to_have_count(2)


def test_the_timeline_shows_a_chosen_step(url: str, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{url}#/timeline?run=podium/rloo")
    expect(page.get_by_role("heading", name="Step 160")).to_be_visible()
    page.get_by_label("Step before").click()
    expect(page.get_by_role("heading", name="Step 159")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^gen"))).to_be_visible()


def test_only_what_differs_between_two_configs_is_shown(url: str, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{url}#/config?run=podium/grpo-seed-1&run=podium/rloo")
    expect(page.get_by_role("row", name=re.compile(r"adv_estimator grpo rloo"))).to_be_visible()
    expect(page.get_by_text("builtin:tiny")).to_have_count(0)
    page.get_by_label("Only differences").uncheck()
    expect(page.get_by_text("builtin:tiny")).to_have_count(2)


def test_the_theme_is_chosen_and_kept(url: str, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{url}#/runs")
    page.get_by_role("button", name=re.compile("^Theme: auto")).click()
    page.get_by_role("button", name=re.compile("^Theme: light")).click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    expect(page.get_by_role("button", name=re.compile("^Theme: dark"))).to_be_visible()


def test_the_picture_of_the_readme(url: str, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{url}{VIEWS['curves']}")
    page.set_viewport_size({"width": 1280, "height": 760})
    settle(page)
    chart = page.locator(".plot").first
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.42, box["y"] + 90)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURE)
    assert PICTURE.stat().st_size < 300_000
    assert ARTEFACTS.exists()
