"""The socket, the live stream, the command, and the dashboard beside a training run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboard_runs import metrics_line, write_lines, write_run

from podium.cli.main import main
from podium.dashboard import live
from podium.dashboard.server import Address, Beside, bind, serve
from podium.errors import ConfigError


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Address]:
    address, end = bind(port=0), threading.Event()
    thread = threading.Thread(target=serve, args=(folder, address, end), daemon=True)
    thread.start()
    try:
        yield address
    finally:
        end.set()
        thread.join(timeout=300)
        assert not thread.is_alive()


def read(url: str) -> Any:
    deadline = time.monotonic() + 300
    while True:
        try:
            with urllib.request.urlopen(url, timeout=300) as answer:
                return json.load(answer)
        except urllib.error.HTTPError:
            raise
        except (ConnectionError, urllib.error.URLError):  # not listening yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def messages(stream: Any) -> Iterator[tuple[str, Any]]:
    kind = ""
    for line in stream:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


def test_a_step_is_told_at_the_first_look_after_its_line(runs: Path) -> None:
    assert live.POLL_S < 1, "within two seconds, looking and telling together"
    with serving(runs) as address, urllib.request.urlopen(f"{address.url}api/live", timeout=300) as stream:
        told = messages(stream)
        assert next(told)[0] == "hello"
        kind, data = next(told)  # the first look tells of every run
        assert kind == "runs"
        path = runs / "podium" / "one" / "metrics.jsonl"
        write_lines(path, [metrics_line(11, 20)], mode="a")
        kind, data = next(told)
        assert [(run["id"], run["step"]) for run in data["changed"]] == [("podium/one", 11)]


def test_new_and_removed_runs_are_told(runs: Path) -> None:
    with serving(runs) as address, urllib.request.urlopen(f"{address.url}api/live", timeout=300) as stream:
        told = messages(stream)
        next(told), next(told)
        write_run(runs.parent / "three", steps=1)
        (runs.parent / "three").rename(runs / "podium" / "three")  # at once: a look may come at any moment
        assert [run["id"] for run in next(told)[1]["changed"]] == ["podium/three"]
        (runs / "podium" / "three").rename(runs.parent / "three")
        assert next(told)[1]["gone"] == ["podium/three"]


def test_a_taken_port_is_left_alone_and_the_next_one_is_used() -> None:
    first, second = bind(), bind()
    try:
        assert first.socket.getsockname()[1] != second.socket.getsockname()[1]
        with pytest.raises(ConfigError, match="choose another --host or --port"):
            bind(port=first.socket.getsockname()[1])
    finally:
        first.socket.close()
        second.socket.close()


def test_binding_wider_makes_a_new_token_each_time_and_puts_it_in_the_address() -> None:
    addresses = [bind("0.0.0.0", 0), bind("0.0.0.0", 0), bind("127.0.0.1", 0)]
    tokens = [address.token for address in addresses]
    for address in addresses:
        address.socket.close()
    assert tokens[2] is None
    assert tokens[0] and tokens[1] and len(tokens[0]) >= 32 and tokens[0] != tokens[1]
    assert addresses[0].token is not None


def test_the_printed_address_answers_and_a_wider_one_asks_for_its_token(runs: Path) -> None:
    command = [sys.executable, "-m", "podium.cli.main", "dashboard", str(runs), "--host", "0.0.0.0", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        base, _, token = url.partition("?token=")
        local = f"http://127.0.0.1:{base.rstrip('/').rpartition(':')[2]}/api/runs"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            read(local)
        request = urllib.request.Request(local, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            assert len(json.load(answer)["runs"]) == 2
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) in (0, 130)


def test_beside_a_run_it_answers_and_ends_with_its_owner(tmp_path: Path) -> None:
    beside = Beside(tmp_path / "runs")
    name = beside.address.socket.getsockname()
    write_run(tmp_path / "runs" / "a", steps=1)
    try:
        assert [run["id"] for run in read(f"{beside.address.url}api/runs")["runs"]] == ["a"]
    finally:
        beside.close()
    with pytest.raises(ConnectionError), socket.create_connection(name, timeout=2):
        pass


def test_it_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from podium.dashboard.server import Beside; b = Beside(sys.argv[1]);"
        "print(b.address.url, b._process.pid, flush=True); time.sleep(3600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    url, pid = owner.stdout.readline().split()
    read(f"{url}api/runs")
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 300
    while _lives(int(pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _lives(int(pid))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, FileNotFoundError):
        return False


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["no-such-folder"], "not a folder"),
        ([".", "."], "takes one folder"),
        ([".", "--port", "70000"], "not a port"),
    ],
)
def test_wrong_arguments_are_named(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", *words]) == 2
    assert reason in " ".join(capsys.readouterr().err.split())


def test_train_with_dashboard_prints_an_address_that_answers_during_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def run_ppo(config: Any) -> int:
        url = capsys.readouterr().out.split()[-1]
        base, _, place = url.partition("#")
        write_run(Path(config.trainer.default_local_dir), steps=2)
        seen.append((place, read(f"{base}api/runs")["runs"][0]["id"]))
        return 0

    module = types.ModuleType("podium.trainer.main_ppo")
    module.run_ppo = run_ppo  # type: ignore[attr-defined]
    package = types.ModuleType("podium.trainer")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "podium.trainer", package)
    monkeypatch.setitem(sys.modules, "podium.trainer.main_ppo", module)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "trainer.experiment_name=mine", "actor_rollout_ref.rollout.n=4", "--dashboard"]) == 0
    assert main(["train", "trainer.default_local_dir=other", "actor_rollout_ref.rollout.n=4", "--dashboard"]) == 0
    assert seen == [("/curves?run=podium/mine", "podium/mine"), ("/curves?run=other", "other")]
