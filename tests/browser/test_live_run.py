"""A real training run, watched from its first step to its last."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dashboard_runs import SCRIPT, sample, write_lines, write_run
from playwright.sync_api import Page, expect

STEPS = 120
SETTINGS = [
    "data.train_files=task:addition?rows=64",
    "data.val_files=task:addition?rows=16",
    "data.train_batch_size=16",
    "data.max_prompt_length=64",
    "data.max_response_length=8",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.rollout.kv_cache_gb=0.1",
    "actor_rollout_ref.actor.optim.lr=1e-4",
    f"trainer.total_training_steps={STEPS}",
    "trainer.test_freq=5",
    "trainer.save_freq=0",
    "trainer.experiment_name=watched",
    "trainer.resume_mode=disable",
]


def start_training(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "podium.cli.main", "train", *SETTINGS, *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def num_points(page: Page) -> int:
    label = page.get_by_label(re.compile(r"^critic/score/mean\. ")).first.get_attribute("aria-label") or ""
    return int(found[1]) if (found := re.search(r"after (\d+) values", label)) else 0


@pytest.mark.timeout(240)
def test_a_run_is_watched_from_start_to_end(
    tmp_path: Path,
    serve_folder: Callable[[Path], str],
    open_page: Callable[..., Page],
    keep: Callable[[Page, str], Path],
    figures: dict[str, Any],
) -> None:
    runs = tmp_path / "runs"
    page = open_page(f"{serve_folder(runs)}#/runs")
    expect(page.get_by_text("No runs here yet")).to_be_visible()
    keep(page, "empty-folder")

    training = start_training(tmp_path)
    try:
        row = page.locator('tr[data-run="podium/watched"]')
        expect(row).to_be_visible(timeout=60_000)
        expect(row.locator(".badge")).to_have_text("running", timeout=60_000)
        row.get_by_role("link", name="watched").click()
        expect(page.get_by_label(re.compile(r"^critic/score/mean\. .*after \d+ values")).first).to_be_visible(
            timeout=60_000
        )

        # Each step is seen within two seconds of its line.
        metrics = runs / "podium" / "watched" / "metrics.jsonl"
        delays = [delay for _ in range(4) if (delay := delay_of_next_step(page, metrics)) is not None]
        figures["seconds from a step's line to its point"] = [round(delay, 2) for delay in delays]
        assert delays
        assert min(delays) < 2

        # A second run is laid over the first.
        write_run(runs / "podium" / "earlier", steps=STEPS, seed=1)
        planted = [sample(STEPS, 0, output=SCRIPT, input=SCRIPT, uid=SCRIPT, gts=SCRIPT, note=SCRIPT)]
        write_lines(runs / "podium" / "earlier" / "rollouts" / f"{STEPS}.jsonl", planted)
        adder = page.get_by_label("Add a run")
        expect(adder.locator("option", has_text="podium/earlier")).to_have_count(1, timeout=10_000)
        adder.select_option("podium/earlier")
        chart = page.get_by_label(re.compile(r"^critic/score/mean\. .*watched.*earlier")).first
        expect(chart.locator("path.line")).to_have_count(2)
        keep(page, "live-curves")

        # A fault appears.
        page.get_by_role("navigation", name="Views").get_by_role("link", name="Events").click()
        fault = {"time": time.time(), "kind": "worker_died", "step": 3, "role": "actor", "rank": 1, "reason": "SIGKILL"}
        write_lines(runs / "podium" / "watched" / "events.jsonl", [fault], mode="a")
        expect(page.get_by_text("worker died")).to_be_visible(timeout=5_000)
        expect(page.locator(".event-error")).to_contain_text("SIGKILL")

        # What the model writes appears, and goes on to the newest step.
        page.get_by_role("navigation", name="Views").get_by_role("link", name="Samples").click()
        expect(page.locator(".sample-row").first).to_contain_text("policy")
        page.locator(".sample-row").first.click()
        expect(page.locator(".detail .token").first).to_be_visible()
        page.get_by_label("Close the sample").click()
        assert training.wait(timeout=120) == 0
        expect(page.locator(".list-status")).to_contain_text(f"at step {STEPS}", timeout=10_000)
        expect(page.locator(".chip").first).to_contain_text("finished", timeout=10_000)
        keep(page, "live-samples")
    finally:
        training.kill()
        training.wait()
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Curves").click()
    expect(
        page.get_by_label(re.compile(rf"^critic/score/mean\. watched ends at .* after {STEPS} values")).first
    ).to_be_visible()
    assert_script_stays_text(page)


def delay_of_next_step(page: Page, metrics: Path) -> float | None:
    """Seconds from the next line of the file to its point in the chart; None when the run ended before."""
    lines = count_steps(metrics)
    deadline = time.monotonic() + 30
    while count_steps(metrics) == lines:
        if lines >= STEPS or time.monotonic() > deadline:
            return None
        time.sleep(0.02)
    written, wanted = time.monotonic(), lines + 1
    while num_points(page) < wanted and time.monotonic() - written < 10:
        page.wait_for_timeout(20)
    return time.monotonic() - written


def count_steps(metrics: Path) -> int:
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return sum('"critic/score/mean"' in line for line in lines if line.endswith("}"))


def assert_script_stays_text(page: Page) -> None:
    """The planted response is shown as it was written, everywhere, and nothing of it runs."""
    page.goto(page.url.partition("#")[0] + f"#/samples?run=podium/earlier&step={STEPS}&line=0")
    expect(page.locator(".sample-row").first).to_contain_text("<script>")
    expect(page.locator(".detail").get_by_text("<script>window.planted").first).to_be_visible()
    assert page.evaluate("window.planted") is None
    assert page.locator("main img, main script").count() == 0


def test_train_with_dashboard_prints_an_address_that_opens(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    training = start_training(tmp_path, "trainer.total_training_steps=30", "--dashboard")
    try:
        assert training.stdout is not None
        line = next(line for line in training.stdout if line.startswith("podium dashboard: "))
        page = open_page(line.split()[-1])
        expect(page.locator(".chip")).to_contain_text("watched", timeout=60_000)
        expect(page.get_by_label(re.compile(r"^critic/score/mean\. .*after \d+ values")).first).to_be_visible(
            timeout=60_000
        )
        page.close()
    finally:
        training.kill()
        training.wait()
    assert json.dumps(line)
