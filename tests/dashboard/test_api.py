"""What the endpoints answer, on whole, growing, crashed and odd runs."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from dashboard_runs import METRICS, metrics_line, sample, write_lines, write_long_metrics, write_run
from starlette.testclient import TestClient

from podium.dashboard.server import make_app

SCORE = "critic/score/mean"


def summaries(client: TestClient) -> dict[str, dict[str, Any]]:
    return {run["id"]: run for run in client.get("/api/runs").json()["runs"]}


def curve(client: TestClient, **params: Any) -> dict[str, Any]:
    answer = client.get("/api/curves", params={"run": "podium/one", "metric": SCORE, **params})
    (found,) = answer.json()["curves"]
    return dict(found)


def test_a_run_at_a_glance(client: TestClient) -> None:
    two = summaries(client)["podium/two"]
    assert (two["status"], two["step"], two["total_steps"], two["name"], two["project"]) == (
        "finished",
        20,
        20,
        "two",
        "podium",
    )
    assert two["validation"]["first"] == pytest.approx(0.2)
    assert two["validation"]["last"] > 0.8
    assert set(two["headline"]) >= {"reward", "KL", "entropy", "length", "tokens/s"}
    assert two["about"] == {"model": "builtin:tiny", "data": "task:addition", "estimator": "rloo", "seed": "1"}


def test_an_empty_folder_has_no_runs(tmp_path: Path) -> None:
    with TestClient(make_app(tmp_path), base_url="http://localhost:8642") as client:
        assert client.get("/api/runs").json()["runs"] == []
        write_run(tmp_path / "first", steps=1)
        assert client.get("/api/config", params={"run": "first"}).status_code == 200


def test_a_run_that_has_only_begun(runs: Path, client: TestClient) -> None:
    fresh = runs / "podium" / "fresh"
    fresh.mkdir()
    (fresh / "metrics.jsonl").touch()
    (fresh / "events.jsonl").touch()
    assert client.get("/api/metrics", params={"run": "podium/fresh"}).json() == {"podium/fresh": []}
    assert client.get("/api/step", params={"run": "podium/fresh"}).json() == {}
    assert client.get("/api/timeline", params={"run": "podium/fresh"}).json()["first"] == []
    assert client.get("/api/config", params={"run": "podium/fresh"}).json() == {"podium/fresh": {}}
    assert client.get("/api/curves", params={"run": "podium/fresh", "metric": SCORE}).json() == {"curves": []}
    answer = client.get("/api/sample-steps", params={"run": "podium/fresh"}).json()
    assert answer == {"rollouts": [], "validation": []}


def test_a_crashed_run_says_why(runs: Path, client: TestClient) -> None:
    folder = write_run(runs / "podium" / "bad", steps=3, total=10, finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "critic/sc')
    with (folder / "console.log").open("a") as file:
        file.write("Traceback (most recent call last):\n  File x\nRuntimeError: out of memory\n")
    time.sleep(2.1)  # the folder is looked through every two seconds
    bad = summaries(client)["podium/bad"]
    assert (bad["status"], bad["reason"], bad["step"]) == ("crashed", "RuntimeError: out of memory", 3)


def test_a_silent_run_is_stalled_and_its_copy_reads_the_same(runs: Path, client: TestClient) -> None:
    folder = write_run(runs / "podium" / "copy", steps=3, total=10, finished=False)
    old = time.time() - 3600
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (old, old))
    assert client.get("/api/step", params={"run": "podium/copy"}).json()["step"] == 3
    assert summaries(client)["podium/copy"]["status"] == "stalled"
    shutil.copytree(folder, runs / "elsewhere")
    assert client.get("/api/metrics", params={"run": "elsewhere"}).json()["elsewhere"] == sorted(
        [*METRICS, "val-core/addition/reward/mean@1", "timing_s/testing"]
    )


def test_curves_of_several_runs_and_metrics(client: TestClient) -> None:
    params = {"run": ["podium/one", "podium/two"], "metric": [SCORE, "val-core/addition/reward/mean@1", "no/such"]}
    found = client.get("/api/curves", params=params).json()["curves"]
    assert [(one["run"], one["metric"], len(one["steps"])) for one in found] == [
        ("podium/one", SCORE, 10),
        ("podium/one", "val-core/addition/reward/mean@1", 3),
        ("podium/two", SCORE, 20),
        ("podium/two", "val-core/addition/reward/mean@1", 5),
    ]


def test_a_zoomed_curve_has_the_range_and_a_point_beyond(client: TestClient) -> None:
    assert curve(client, **{"from": 3, "to": 5})["steps"] == [2, 3, 4, 5, 6]


def test_a_smoothed_curve_comes_beside_the_raw_one(client: TestClient) -> None:
    found = curve(client, smooth=0.9)
    assert len(found["smooth"]) == len(found["values"]) == 10
    assert "smooth" not in curve(client)


def test_a_curve_shows_new_steps_as_they_are_written(runs: Path, client: TestClient) -> None:
    assert curve(client)["steps"][-1] == 10
    with (runs / "podium" / "one" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(metrics_line(11, 12)) + "\n" + '{"step": 12, "crit')
    assert curve(client)["steps"][-1] == 11


def test_not_a_number_is_a_gap(runs: Path, client: TestClient) -> None:
    write_lines(runs / "podium" / "one" / "metrics.jsonl", [{"step": 11, SCORE: None}], mode="a")
    assert curve(client)["values"][-1] is None


def test_a_long_curve_comes_in_few_points(runs: Path, client: TestClient) -> None:
    write_long_metrics(runs / "podium" / "one" / "metrics.jsonl", 20_000)
    found = curve(client, points=400)
    assert (found["num_points"], found["steps"][0], found["steps"][-1]) == (20_000, 0, 19_999)
    assert len(found["steps"]) <= 404


def test_the_timeline_has_seconds_per_phase(client: TestClient) -> None:
    answer = client.get("/api/timeline", params={"run": "podium/one", "buckets": 5}).json()
    assert (answer["first"], answer["last"]) == ([1, 3, 5, 7, 9], [2, 4, 6, 8, 10])
    assert answer["phases"]["step"] == [3.5] * 5
    assert answer["phases"]["testing"] == [0, 0, pytest.approx(0.2), 0, pytest.approx(0.2)]


def test_a_step_has_all_its_numbers(client: TestClient) -> None:
    record = client.get("/api/step", params={"run": "podium/one", "step": 10}).json()
    assert {"val-core/addition/reward/mean@1", SCORE, "timing_s/step"} <= set(record)


def test_events_come_newest_first_with_their_severity(runs: Path, client: TestClient) -> None:
    fault = {"time": 1.0, "kind": "worker_died", "role": "actor"}
    write_lines(runs / "podium" / "one" / "events.jsonl", [fault], mode="a")
    write_lines(runs / "podium" / "one" / "quarantine.jsonl", [{"file": "a", "row": 3, "reason": "no prompt"}])
    answer = client.get("/api/events", params={"run": "podium/one"}).json()
    assert answer["events"][0] == {"severity": "error", "number": 3, "event": fault}
    assert answer["quarantine"] == [{"file": "a", "row": 3, "reason": "no prompt"}]
    assert summaries(client)["podium/one"]["faults"] == {"errors": 1, "warnings": 0, "last": "worker_died"}


def test_configs_are_flat_and_comparable(client: TestClient) -> None:
    answer = client.get("/api/config", params={"run": ["podium/one", "podium/two"]}).json()
    assert answer["podium/one"]["actor_rollout_ref.actor.optim.lr"] == 1e-4
    assert answer["podium/two"]["data.train_batch_size"] == 16
    assert answer["podium/one"]["data.train_files"] == "['task:addition']"
    assert answer["podium/one"]["trainer.project_name"] is None


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2", "", "a: &x [*x]\nb: 1", "x: !!python/object:os.system {}"])
def test_an_unreadable_config_is_no_error(text: str, runs: Path, client: TestClient) -> None:
    (runs / "podium" / "one" / "config.yaml").write_text(text)
    assert client.get("/api/config", params={"run": "podium/one"}).status_code == 200
    assert "podium/one" in summaries(client)


def test_a_page_of_samples(client: TestClient) -> None:
    params = {"run": "podium/one", "step": 10, "sort": "score", "desc": 1, "limit": 3, "offset": 1}
    answer = client.get("/api/samples", params=params).json()
    assert (answer["total"], answer["matched"], len(answer["samples"])) == (16, 16, 3)
    assert all(row["score"] == 1.0 for row in answer["samples"])


def test_one_sample_comes_with_its_group(client: TestClient) -> None:
    answer = client.get("/api/sample", params={"run": "podium/one", "step": 10, "line": 5}).json()
    assert answer["record"] == sample(10, 1, 1)
    assert [one["line"] for one in answer["siblings"]] == [4, 5, 6, 7]
    missing = client.get("/api/sample", params={"run": "podium/one", "step": 10, "line": 99})
    assert missing.status_code == 404


def test_groups_and_facets(client: TestClient) -> None:
    params = {"run": "podium/one", "step": 10, "kind": "rollouts"}
    groups = client.get("/api/groups", params={**params, "sort": "mean", "desc": 1, "limit": 2}).json()
    assert (groups["matched"], len(groups["groups"]), groups["groups"][0]["size"]) == (4, 2, 4)
    assert "user" in groups["groups"][0]["prompt"]
    assert client.get("/api/facets", params=params).json()["num_prompts"] == 4


def test_one_prompt_over_the_steps(client: TestClient) -> None:
    params = {"run": "podium/one", "kind": "validation", "uid": "train:addition, row 2"}
    answer = client.get("/api/history", params=params).json()
    assert [(entry["step"], entry["mean"]) for entry in answer["steps"]] == [(1, 1.0), (10, 1.0)]


@pytest.mark.parametrize("params", [{"sort": "colour"}, {"kind": "secrets"}, {"min_score": "nan"}, {"limit": "x"}])
def test_a_bad_parameter_is_a_400_that_says_what_is_allowed(params: dict[str, str], client: TestClient) -> None:
    answer = client.get("/api/samples", params={"run": "podium/one", "step": 1, **params})
    assert answer.status_code == 400
    assert next(iter(params)) in answer.json()["error"]
