"""A full disk, a folder that cannot be written, a hostile checkpoint: the last good one stays, the run goes on."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_driver import TINY, Fault, train, without_clocks

from podium.checkpoint.store import CheckpointStore
from podium.config import load_config
from podium.config.secrets import scrub, scrub_text
from podium.engines.train.state import load_state, save_state, saved_names
from podium.errors import CheckpointError
from podium.tracking import read_events, read_metrics

Golden = Callable[..., list[dict[str, Any]]]
WORDS = ["trainer.total_training_steps=8", "trainer.async_save=false"]


FULL = pytest.mark.parametrize(
    ("mode", "limit"),
    [("true", 20_000), ("true", 5_000_000), ("false", 5_000_000)],
    ids=["async-in-hf", "async-in-shards", "sync-in-shards"],
)
"""Where the disk is full: hf/model.safetensors has 3.3 MB, the file of model and optimizer more."""


@FULL
def test_a_full_disk_during_saves_costs_those_saves_only(tmp_path: Path, golden: Golden, mode: str, limit: int) -> None:
    full = Fault("stage", nth=2, max_file_bytes=limit, lasts=2)
    words = ["trainer.total_training_steps=8", f"trainer.async_save={mode}"]
    assert train(tmp_path / "run", *words, faults=(full,)) == 0, (tmp_path / "run.out").read_text()
    assert without_clocks(read_metrics(tmp_path / "run")) == golden(*WORDS)
    events = read_events(tmp_path / "run")
    failed = [e for e in events if e["kind"] == "checkpoint_failed"]
    assert [e["step"] for e in failed] == [2, 3] and all("File too large" in e["reason"] for e in failed)
    assert [e["step"] for e in events if e["kind"] == "checkpoint_saved"] == [1, 4, 5, 6, 7, 8]
    assert not list(tmp_path.rglob(".staging*")), "what was half written is gone"
    assert "Traceback" not in (tmp_path / "run.out").read_text()


@FULL
def test_a_last_save_that_fails_ends_the_run_with_an_error_and_keeps_the_one_before(
    tmp_path: Path, mode: str, limit: int
) -> None:
    full = Fault("stage", nth=3, max_file_bytes=limit)
    words = ["trainer.total_training_steps=3", f"trainer.async_save={mode}"]
    assert train(tmp_path / "run", *words, faults=(full,)) == 1
    said = " ".join((tmp_path / "run.out").read_text().split())
    assert "the last checkpoint, of step 3, could not be saved" in said and "File too large" in said
    assert "The newest complete one is" in said and "Traceback" not in said
    assert "finished" not in [e["kind"] for e in read_events(tmp_path / "run")]
    assert not list(tmp_path.rglob(".staging*"))
    found = CheckpointStore(tmp_path / "run" / "checkpoints").newest()
    assert found.path is not None and found.path.name == "global_step_2" and not found.broken
    assert train(tmp_path / "run", *words) == 0


def test_a_run_that_is_told_to_stop_and_cannot_save_says_from_where_it_will_go_on(tmp_path: Path) -> None:
    full = Fault("stage", nth=2, max_file_bytes=5_000_000, lasts=9)
    stop = Fault("gen", nth=3, signum=signal.SIGTERM)
    words = ["trainer.total_training_steps=9", "trainer.logger=[console]"]
    assert train(tmp_path / "run", *words, faults=(full, stop)) == 128 + signal.SIGTERM
    said = " ".join((tmp_path / "run.out").read_text().split())
    assert "stopped after step 2; the same command goes on from step 1, the newest that is saved" in said


@pytest.mark.parametrize("phase", ["seal", "record", "gen"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_run_whose_output_is_on_the_full_disk_too_stops_like_any_other(
    tmp_path: Path, golden: Golden, phase: str, signum: int
) -> None:
    full = Fault("stage", nth=2, max_file_bytes=0)
    stop = Fault(phase, nth=3 if phase == "gen" else 2, signum=signum)
    words = ["trainer.async_save=false", "trainer.logger=[console]"]
    run = tmp_path / "run"
    assert train(run, *WORDS, *words, faults=(full, stop)) == 128 + signum, (tmp_path / "run.out").read_text()
    assert train(run, *WORDS, *words) == 0
    assert without_clocks(read_metrics(run)) == golden(*WORDS)
    assert "finished: 8 steps" in (tmp_path / "run.out").read_text()


def test_a_checkpoint_folder_that_cannot_be_made_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("a file where the folder should be")
    words = ["trainer.total_training_steps=2", "trainer.save_freq=1"]
    assert train(tmp_path / "run", *words) == 1, "the last save must succeed"
    failed = [e for e in read_events(tmp_path / "run") if e["kind"] == "checkpoint_failed"]
    assert [e["step"] for e in failed] == [1, 2] and len(read_metrics(tmp_path / "run")) == 2


def test_a_damaged_checkpoint_is_named_and_the_run_goes_on_from_the_one_before(tmp_path: Path, golden: Golden) -> None:
    assert train(tmp_path / "run", "trainer.total_training_steps=5", "trainer.async_save=false") == 0
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    victim = store.steps()[5] / "actor" / "__0_0.distcp"
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    assert train(tmp_path / "run", *WORDS) == 0
    assert without_clocks(read_metrics(tmp_path / "run")) == golden(*WORDS)
    broken = next(e for e in read_events(tmp_path / "run") if e["kind"] == "checkpoint_broken")
    assert "global_step_5" in broken["path"] and "__0_0.distcp differs from its checksum" in broken["fault"]


def test_a_run_goes_on_elsewhere_from_its_uploaded_checkpoint(tmp_path: Path, golden: Golden) -> None:
    far = f"trainer.default_hdfs_dir=file://{tmp_path / 'far'}"
    assert train(tmp_path / "here", far, "trainer.total_training_steps=5") == 0
    assert train(tmp_path / "there", far, *WORDS) == 0
    resumed = without_clocks(read_metrics(tmp_path / "there"))
    assert resumed == golden(*WORDS)[5:], "the machine that came later has the later steps"


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("bomb_went_off",)


def test_a_hostile_checkpoint_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_state(tmp_path / "actor", {"model.w": torch.zeros(3)}, distributed=False)
    assert saved_names(tmp_path / "actor") == {"model.w"}
    (tmp_path / "actor" / ".metadata").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match=r"mkdir, which no checkpoint needs; it is refused"):
        saved_names(tmp_path / "actor")
    with pytest.raises(CheckpointError, match="refused"):
        load_state(tmp_path / "actor", {"model.w": torch.zeros(3)}, distributed=False)
    assert not (tmp_path / "bomb_went_off").exists()


def test_no_secret_reaches_the_run_folder(tmp_path: Path) -> None:
    words = ["+extra.openai_api_key=sk-12345678", "trainer.total_training_steps=1", "trainer.save_freq=0"]
    words[0] = words[0].removeprefix("+")
    assert train(tmp_path / "run", *words) == 0, (tmp_path / "run.out").read_text()
    texts = [p.read_text(errors="replace") for p in (tmp_path / "run").rglob("*") if p.is_file()]
    assert texts and not any("sk-12345678" in text for text in texts)
    assert load_config(tmp_path / "run" / "config.yaml").extra["openai_api_key"] == "***"


def test_what_counts_as_a_secret() -> None:
    values = {"api_key": "a", "hf_token": "b", "prompt_key": "prompt", "max_tokens": 3, "url": "s3://me:pw@host/x"}
    assert scrub(values) == {
        "api_key": "***",
        "hf_token": "***",
        "prompt_key": "prompt",
        "max_tokens": 3,
        "url": "s3://***@host/x",
    }
    assert (
        scrub_text("failed with tok-12345", {"WANDB_API_KEY": "tok-12345", "HOME": "failed with"}) == "failed with ***"
    )


def test_every_setting_of_these_runs_is_known() -> None:
    load_config(None, [*TINY, *WORDS])
