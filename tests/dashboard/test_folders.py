"""Which runs are found, and that nothing outside the folder is ever opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dashboard_runs import write_run
from starlette.testclient import TestClient

from podium.dashboard.folders import RunsFolder
from podium.errors import ConfigError


def test_runs_are_found_at_any_depth_and_not_inside_other_runs(tmp_path: Path) -> None:
    for name in ("alone", "project/a", "team/project/b"):
        write_run(tmp_path / name, steps=1)
    write_run(tmp_path / "project" / "a" / "previous" / "1", steps=1)
    write_run(tmp_path / ".hidden" / "c", steps=1)
    (tmp_path / "notes").mkdir()
    assert set(RunsFolder(tmp_path).scan()) == {"alone", "project/a", "team/project/b"}


def test_a_run_folder_itself_can_be_opened(tmp_path: Path) -> None:
    assert set(RunsFolder(write_run(tmp_path / "mine", steps=1)).scan()) == {"mine"}


def test_a_missing_folder_is_an_error_that_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="folder that holds the runs"):
        RunsFolder(tmp_path / "none")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    outside = write_run(tmp_path / "outside" / "private", steps=2)
    (outside / "rollouts" / "1.jsonl").write_text('{"output": "SECRET"}\n')
    return outside


def test_links_that_leave_the_folder_are_not_followed(runs: Path, client: TestClient, secret: Path) -> None:
    one = runs / "podium" / "one"
    (runs / "linked").symlink_to(secret)
    for name in ("config.yaml", "console.log", "events.jsonl"):
        (one / name).unlink()
        (one / name).symlink_to(secret / name)
    (one / "rollouts" / "77.jsonl").symlink_to(secret / "rollouts" / "1.jsonl")
    (one / "rollouts" / "78.jsonl").symlink_to(one / "rollouts" / "78.jsonl")
    assert [run["id"] for run in client.get("/api/runs").json()["runs"]] == ["podium/one", "podium/two"]
    assert client.get("/api/config", params={"run": "podium/one"}).json() == {"podium/one": {}}
    assert client.get("/api/log", params={"run": "podium/one"}).json() == {"text": ""}
    assert client.get("/api/events", params={"run": "podium/one"}).json()["events"] == []
    for step in (77, 78):
        answer = client.get("/api/samples", params={"run": "podium/one", "step": step})
        assert (answer.status_code, "SECRET" in answer.text) == (404, False)


def test_a_dump_folder_that_is_a_link_is_not_followed(runs: Path, client: TestClient, secret: Path) -> None:
    folder = runs / "podium" / "one" / "rollouts"
    folder.rename(folder.with_name("old"))
    folder.symlink_to(secret / "rollouts")
    assert client.get("/api/sample-steps", params={"run": "podium/one"}).json()["rollouts"] == []
    assert client.get("/api/samples", params={"run": "podium/one", "step": 1}).status_code == 404


def test_a_pipe_in_the_place_of_a_file_is_not_opened(runs: Path, client: TestClient) -> None:
    os.mkfifo(runs / "podium" / "one" / "rollouts" / "9.jsonl")
    assert client.get("/api/samples", params={"run": "podium/one", "step": 9}).status_code == 404


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../outside/private",
        "podium/../../outside/private",
        "podium/one/../../../outside/private",
        "podium/one/",
        "./podium/one",
        "/etc",
        "podium%2fone",
        "podium\\one",
        "podium/one\x00",
        "",
    ],
)
def test_a_run_is_named_by_its_id_and_never_by_a_path(name: str, client: TestClient, secret: Path) -> None:
    for endpoint in ("config", "log", "events", "step", "sample-steps", "curves", "samples"):
        assert client.get(f"/api/{endpoint}", params={"run": name, "step": 1}).status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/%2e%2e/server.py",
        "/..%2fserver.py",
        "/js/..%2f..%2f..%2fserver.py",
        "/js/%2e%2e/%2e%2e/server.py",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "/js/..\\..\\server.py",
    ],
)
def test_static_files_stay_in_their_folder(path: str, client: TestClient) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "import" not in answer.text


@pytest.mark.parametrize("step", ["../1", "1/../../1", "-1", "1.5", "9" * 30, "%2e", "١"])
def test_a_step_is_a_whole_number(step: str, client: TestClient) -> None:
    answer = client.get("/api/samples", params={"run": "podium/one", "step": step})
    assert answer.status_code == 400
    assert "whole number" in answer.json()["error"]
