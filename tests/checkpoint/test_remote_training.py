"""`podium train` with `trainer.default_hdfs_dir` on a real S3 server, as a user runs it: a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from remote_servers import KEY, S3, SECRET, why_not

from podium.tracking.runlog import read_events, read_metrics

WORDS = [
    *("data.train_files=task:addition?rows=24", "data.val_files=task:addition?rows=4", "data.train_batch_size=4"),
    *("data.max_prompt_length=64", "data.max_response_length=4", "actor_rollout_ref.rollout.n=2"),
    *("actor_rollout_ref.rollout.kv_cache_gb=0.02", "actor_rollout_ref.actor.optim.lr=1e-3"),
    *("trainer.val_before_train=false", "trainer.save_freq=1", "trainer.max_ckpt_to_keep=2", "trainer.logger=[]"),
]
CLOCKS = ("timing", "perf/", "publish/seconds")
pytestmark = pytest.mark.skipif(bool(why_not("s3")), reason=why_not("s3"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3]:
    server = S3(tmp_path / "server")
    server.start()
    yield server
    server.kill()


def launch(server: S3, folder: Path, steps: int, *words: str) -> subprocess.Popen[bytes]:
    settings = server.environ()
    settings["FSSPEC_S3_ENDPOINT_URL"] = settings.pop("AWS_ENDPOINT_URL")  # the other of the two ways
    program = "import sys; from podium.cli.main import main; sys.exit(main(sys.argv[1:]))"
    where = [f"trainer.default_local_dir={folder}", f"trainer.total_training_steps={steps}"]
    with Path(f"{folder}.out").open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-c", program, "train", *WORDS, *where, *words],
            stdout=out,
            stderr=out,
            env=os.environ | settings,
            start_new_session=True,
        )


def train(server: S3, folder: Path, steps: int, *words: str) -> int:
    return launch(server, folder, steps, *words).wait(900)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in step.items() if not k.startswith(CLOCKS)} for step in read_metrics(folder)]


def events(folder: Path) -> list[dict[str, Any]]:
    return read_events(folder) if (folder / "events.jsonl").exists() else []


def output(folder: Path) -> str:
    """In one line: a console breaks lines where it likes."""
    return " ".join(Path(f"{folder}.out").read_text(errors="replace").split())


def no_secret(folder: Path) -> bool:
    files = [path for path in folder.rglob("*") if path.is_file()] + [Path(f"{folder}.out")]
    return not any(secret.encode() in path.read_bytes() for path in files for secret in (KEY, SECRET))


def wait_for(folder: Path, kind: str, limit_s: float = 900.0) -> None:
    deadline = time.monotonic() + limit_s
    while not any(event["kind"] == kind for event in events(folder)):
        assert time.monotonic() < deadline, output(folder)
        time.sleep(0.05)


def steps_at(server: S3, name: str) -> list[str]:
    return sorted(path.parent.name for path in (server.folder / "files" / "bucket" / name).glob("*/manifest.json"))


def test_a_run_goes_on_in_an_empty_folder_with_the_same_metrics(tmp_path: Path, server: S3) -> None:
    far = "trainer.default_hdfs_dir=s3://bucket/run"
    assert train(server, tmp_path / "golden", 5) == 0, output(tmp_path / "golden")
    assert train(server, tmp_path / "here", 3, far) == 0, output(tmp_path / "here")
    assert steps_at(server, "run") == ["global_step_2", "global_step_3"], "retention holds there too"
    assert train(server, tmp_path / "there", 5, far) == 0, output(tmp_path / "there")
    golden = metrics(tmp_path / "golden")
    assert metrics(tmp_path / "there") == golden[3:], "bit for bit"
    validated = {key for key in metrics(tmp_path / "here")[2] if key.startswith("val")}  # step 3 was its last
    assert [{k: v for k, v in step.items() if k not in validated} for step in metrics(tmp_path / "here")] == golden[:3]
    assert no_secret(tmp_path / "here") and no_secret(tmp_path / "there")
    assert "default_hdfs_dir: s3://bucket/run" in (tmp_path / "there" / "config.yaml").read_text()


def test_a_server_that_dies_costs_no_step_and_the_same_command_makes_it_good(tmp_path: Path, server: S3) -> None:
    folder, far = tmp_path / "run", "trainer.default_hdfs_dir=s3://bucket/run"
    child = launch(server, folder, 40, far)  # so many that the server dies long before the last one
    wait_for(folder, "checkpoint_uploaded")
    server.kill()
    assert child.wait(900) == 1
    assert len(metrics(folder)) == 40, "training goes on"
    assert [e for e in events(folder) if e["kind"] == "upload_failed"][-1]["path"].endswith("global_step_40")
    assert "global_step_40 is saved, but could not be uploaded" in output(folder) and no_secret(folder)
    assert "Traceback" not in output(folder)
    server.start()
    assert "global_step_40" not in steps_at(server, "run")
    assert train(server, folder, 40, far) == 0, output(folder)
    assert "global_step_40" in steps_at(server, "run")


def test_a_run_that_is_told_to_stop_uploads_its_last_save(tmp_path: Path, server: S3) -> None:
    folder = tmp_path / "run"
    child = launch(server, folder, 500, "trainer.default_hdfs_dir=s3://bucket/run", "data.train_files=task:addition")
    wait_for(folder, "checkpoint_uploaded")
    child.send_signal(signal.SIGTERM)
    assert child.wait(900) == 143, output(folder)
    stopped = next(event for event in events(folder) if event["kind"] == "stopped")
    newest = max(int(name.rpartition("_")[2]) for name in steps_at(server, "run"))
    assert newest == stopped["step"]


def test_wrong_credentials_end_a_run_before_it_begins(
    tmp_path: Path, server: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = server.environ() | {"AWS_ACCESS_KEY_ID": "WRONG-1234"}
    monkeypatch.setattr(S3, "environ", lambda self: dict(given))
    assert train(server, tmp_path / "run", 1, "trainer.default_hdfs_dir=s3://bucket/run") == 1
    text = output(tmp_path / "run")
    assert "does not exist in our records" in text and "set AWS_ACCESS_KEY_ID" in text
    assert "Traceback" not in text and "WRONG-1234" not in text
