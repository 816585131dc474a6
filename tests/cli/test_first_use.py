"""What a first user meets: data with faults, a run that saved nothing, a list of runs that tells of both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from podium.cli.main import main
from podium.dashboard.folders import RunsFolder
from podium.dashboard.runs import RunStore

SMALL = [
    *("data.train_batch_size=4", "data.max_response_length=4", "actor_rollout_ref.rollout.n=2", "trainer.logger=[]"),
    *("actor_rollout_ref.rollout.kv_cache_gb=0.02", "trainer.experiment_name=first"),
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    return " ".join((out + err).split())


def test_a_run_that_dies_of_its_rows_is_listed_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.jsonl").write_text('{"prompt": "1+1=", "answer": "2", "data_source": "gsm8k"}\n\n{"prompt": 1+2}\n')
    assert main(["train", "data.train_files=mine.jsonl", *SMALL]) == 1
    assert "mine.jsonl, line 3: not valid JSON" in said(capsys)
    assert main(["runs"]) == 0
    listed = said(capsys)
    assert "podium/first crashed" in listed and "mine.jsonl, line 3: not valid JSON" in listed
    (run,) = RunStore(RunsFolder("runs")).runs()
    assert run.summary()["status"] == "crashed"


def test_a_wrong_setting_leaves_no_run_behind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "data.train_batch_size=0", *SMALL[1:]]) == 2
    assert not Path("runs").exists()


def test_a_run_that_saved_nothing_says_what_can_be_evaluated_instead(capsys: pytest.CaptureFixture[str]) -> None:
    files = ["data.train_files=task:addition?rows=8", "data.val_files=task:addition?rows=4"]
    assert main(["train", *files, *SMALL, "trainer.total_training_steps=1", "trainer.save_freq=0"]) == 0
    capsys.readouterr()
    assert main(["eval", "runs/podium/first"]) == 1
    text = said(capsys)
    assert "there is no complete checkpoint in runs/podium/first" in text and "resume_mode" not in text
    assert "podium eval builtin:tiny 'data.val_files=[task:addition?rows=4]'" in text
    assert main(["eval", "builtin:tiny", "data.val_files=[task:addition?rows=4]"]) == 0
    assert main(["generate", "runs/podium/first", "1+1="]) == 1
    assert "started from is builtin:tiny" in said(capsys)
    assert main(["train", *files, *SMALL, "data.train_batch_size=64", "trainer.total_training_steps=2"]) == 2
    (run,) = RunStore(RunsFolder("runs")).runs()
    assert run.summary()["status"] == "finished", "a later command that did not even begin changes nothing"


def test_each_step_is_one_line_of_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    files = ["data.train_files=task:addition?rows=8", "data.val_files=task:addition?rows=4"]
    often = ["trainer.total_training_steps=2", "trainer.save_freq=1", "trainer.test_freq=1"]
    assert main(["train", *files, *SMALL, *often]) == 0
    lines = [json.loads(line) for line in Path("runs/podium/first/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    for line in lines[1:]:
        assert {"actor/pg_loss", "val/test_score/addition", "timing_s/save_checkpoint"} <= set(line)
