"""Very long and very many: first paint and a curve of 100,000 steps within a second, a million samples, ten runs."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dashboard_runs import sample, write_lines, write_long_metrics, write_run
from playwright.sync_api import Page, expect

LONG = 100_000
TRIES = 3


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten runs, one of them with 100,000 steps and a dump of a million samples."""
    root = tmp_path_factory.mktemp("many") / "runs"
    for seed in range(9):
        write_run(root / "podium" / f"run-{seed}", steps=60 + 10 * seed, seed=seed, finished=seed != 4)
    long = write_run(root / "podium" / "long", steps=2, total=LONG)
    write_long_metrics(long / "metrics.jsonl", LONG)
    with (long / "rollouts" / "9.jsonl").open("w") as file:
        for row in range(125_000):
            file.writelines(json.dumps(sample(9, row, k)) + "\n" for k in range(8))
    thousand = root / "podium" / "run-0" / "rollouts" / "60.jsonl"
    write_lines(thousand, [sample(60, row, k) for row in range(125) for k in range(8)])
    for step in range(1000, 2000):  # a million samples in a thousand dumps
        os.link(thousand, thousand.with_name(f"{step}.jsonl"))
    return root


def best(tries: list[float]) -> float:
    """The machine may be busy with other things; what it can do is the best of a few."""
    return round(min(tries), 3)


def test_first_paint_is_within_a_second(
    many: Path, serve_folder: Callable[[Path], str], open_page: Callable[..., Page], figures: dict[str, Any]
) -> None:
    url = serve_folder(many)
    paints, tables = [], []
    for _ in range(TRIES):
        page = open_page(f"{url}#/runs")
        expect(page.locator("tr[data-run]")).to_have_count(10)
        tables.append(page.evaluate("performance.now()") / 1000)
        paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        paints.append(page.evaluate(paint) / 1000)
        page.close()
    figures["first contentful paint, s"] = best(paints)
    figures["ten runs in the table, s"] = best(tables)
    assert best(paints) < 1


def test_a_curve_of_100k_steps_is_drawn_within_a_second(
    many: Path, serve_folder: Callable[[Path], str], open_page: Callable[..., Page], figures: dict[str, Any]
) -> None:
    cold, warm = [], []
    for _ in range(TRIES):
        url = serve_folder(many)  # a server that has just started
        page = open_page(f"{url}#/config?run=podium/long")
        expect(page.locator("table.config")).to_be_visible()
        cold.append(seconds_to_draw(page))
        page.get_by_role("navigation", name="Views").get_by_role("link", name="Config").click()
        expect(page.locator("table.config")).to_be_visible()
        warm.append(seconds_to_draw(page))
        page.close()
    figures["100k-step curve, server just started, s"] = best(cold)
    figures["100k-step curve, server warm, s"] = best(warm)
    assert best(cold) < 1
    assert best(warm) < 1


def seconds_to_draw(page: Page) -> float:
    """From the click on Curves to the first line on the screen."""
    return float(
        page.evaluate(
            """async () => {
                const start = performance.now();
                document.querySelector('#tabs a[href*="#/curves"]').click();
                while (!document.querySelector('.plot path.line')) await new Promise(requestAnimationFrame);
                return (performance.now() - start) / 1000;
            }"""
        )
    )


def test_a_zoom_into_100k_steps_shows_every_step(
    many: Path, serve_folder: Callable[[Path], str], open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{serve_folder(many)}#/curves?run=podium/long&q=score/mean&x=500-560")
    expect(page.locator(".plot path.line").first).to_be_visible()
    expect(page.get_by_text("steps 500 to 560")).to_be_visible()
    answer = page.evaluate(
        "fetch('api/curves?run=podium/long&metric=critic/score/mean&from=500&to=560').then((answer) => answer.json())"
    )
    assert answer["curves"][0]["steps"] == list(range(499, 562))


def test_a_million_samples_can_be_paged(
    many: Path, serve_folder: Callable[[Path], str], open_page: Callable[..., Page], figures: dict[str, Any]
) -> None:
    url = serve_folder(many)
    start = time.monotonic()
    page = open_page(f"{url}#/samples?run=podium/long&step=9")
    expect(page.locator(".list-status")).to_contain_text("1,000,000 samples")
    figures["first page of a million samples, s"] = round(time.monotonic() - start, 2)
    expect(page.get_by_role("button", name="Summarize 1,000,000 samples")).to_be_visible()
    page.get_by_role("button", name="Show more").click()
    expect(page.locator(".sample-row")).to_have_count(80)
    start = time.monotonic()
    with page.expect_response(lambda answer: "sort=score" in answer.url, timeout=60_000):
        page.get_by_label("Order").select_option("score:0")
    expect(page.locator(".sample-row .score").first).to_have_text("0")
    figures["a million samples of one dump sorted the first time, s"] = round(time.monotonic() - start, 1)


def test_a_million_samples_in_a_thousand_dumps_are_sorted_and_followed(
    many: Path, serve_folder: Callable[[Path], str], open_page: Callable[..., Page], figures: dict[str, Any]
) -> None:
    page = open_page(f"{serve_folder(many)}#/runs")
    expect(page.locator("tr[data-run]")).to_have_count(10)
    start = time.monotonic()
    page.goto(f"{page.url.partition('#')[0]}#/samples?run=podium/run-0&sort=score&desc=1")
    expect(page.locator(".list-status")).to_have_text("1,000 samples at step 1,999")
    figures["a sorted page of a million samples in a thousand dumps, s"] = round(time.monotonic() - start, 2)
    page.locator(".sample-row").first.click()
    start = time.monotonic()
    page.get_by_text("This prompt over the steps").click()
    expect(page.locator(".history-row").nth(100)).to_be_attached(timeout=20_000)
    figures["one prompt looked for in 200 of a thousand dumps, s"] = round(time.monotonic() - start, 2)


def test_ten_runs_lie_over_each_other_in_their_own_colours(
    many: Path, serve_folder: Callable[[Path], str], open_page: Callable[..., Page], keep: Callable[[Page, str], Path]
) -> None:
    names = [f"podium/run-{seed}" for seed in range(9)] + ["podium/long"]
    query = "&".join(f"run={name}" for name in names[:9])
    page = open_page(f"{serve_folder(many)}#/curves?{query}&smooth=0.8")
    chart = page.get_by_label(re.compile(r"^critic/score/mean\. ")).first
    expect(chart.locator("path.line:not(.line-raw)")).to_have_count(9)
    colours = chart.locator("path.line:not(.line-raw)").evaluate_all(
        "(lines) => lines.map((line) => getComputedStyle(line).stroke)"
    )
    assert len(set(colours)) == 9
    page.wait_for_timeout(500)
    keep(page, "nine-runs")
