"""CheckpointSaver with workers that fail, hang, or write where nobody sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from podium.checkpoint.store import CheckpointStore
from podium.config.schema import TrainerConfig
from podium.engines.train.state import save_state
from podium.errors import CheckpointError
from podium.single_controller.worker import Worker
from podium.stop_points import off_stop_point, on_stop_point
from podium.trainer import saving
from podium.trainer.resume import ResumePoint
from podium.trainer.saving import CheckpointSaver
from podium.trainer.shared_folder import unseen_folder_notes

LIMIT_S = 600.0


class Workers:
    """A group of one that writes a small model, with what is wrong with it."""

    def __init__(self, part: str = "actor", spoil: Callable[[Path], None] | None = None) -> None:
        self.part, self.spoil = part, spoil
        self.may_write, self.was_asked = threading.Event(), threading.Event()
        self.may_write.set()
        self.folder = Path()

    def save_checkpoint(self, folder: str, background: bool) -> None:
        self.folder = Path(folder)

    def checkpoint_written(self) -> list[bool]:
        self.was_asked.set()
        if not self.may_write.is_set():
            return [False]
        save_state(self.folder / self.part, {"model.w": torch.zeros(2)}, distributed=False)
        if self.spoil is not None:
            self.spoil(self.folder)
        return [True]


class Seeing:
    """A group of which only some ranks see the file."""

    def __init__(self, *sees: bool) -> None:
        self.answers = list(sees)

    def execute_all(self, method: str, path: str) -> list[bool]:
        assert method == "sees" and Worker().sees(path) and not Worker().sees(path + "x", limit_s=0.0)
        return self.answers


def test_workers_that_do_not_see_the_run_folder_are_named_before_the_training(tmp_path: Path) -> None:
    config = TrainerConfig(runtime="ray", default_local_dir=str(tmp_path / "run"), save_freq=1)
    assert unseen_folder_notes(config, Seeing(True, True)) == []
    (said,) = unseen_folder_notes(config, Seeing(True, False, False))
    assert "2 of 3 workers (the first is rank 1) do not see the run folder" in said
    assert list((tmp_path / "run").iterdir()) == []
    assert unseen_folder_notes(replace(config, save_freq=0), Seeing(False)) == []


class Record:
    """What the saver tells."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.reasons: list[str] = []
        self.log = SimpleNamespace(flush=lambda: None)

    def checkpoint(self, step: int, path: Path) -> None:
        self.told.append(("saved", step))

    def checkpoint_failed(self, step: int, error: BaseException) -> None:
        self.told.append(("failed", step))
        self.reasons.append(str(error))

    def waits_for_checkpoint(self, step: int, folder: Path) -> None:
        self.told.append(("waits", step))

    def save_time(self, step: int, seconds: float) -> None: ...


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Iterator[Record]:
    monkeypatch.setattr(saving, "_ARRIVE_LIMIT_S", 0.0)
    monkeypatch.setattr(saving, "_LEAVE_LIMIT_S", 0.0)
    yield Record()


def make(tmp_path: Path, record: Record, limit_s: float = LIMIT_S) -> CheckpointSaver:
    told: Any = record
    config = TrainerConfig(async_save=True, worker_timeout_s=limit_s)
    return CheckpointSaver(CheckpointStore(tmp_path / "checkpoints"), told, None, config)


def save(saver: CheckpointSaver, step: int, *groups: Workers) -> None:
    saver.save(ResumePoint(step, {"global_steps": step}), {}, groups)


def left(saver: CheckpointSaver) -> list[str]:
    return sorted(path.name for path in saver.store.folder.glob("*step*"))


def lose_shard(folder: Path) -> None:
    (folder / "actor" / "__0_0.distcp").unlink()


def test_a_checkpoint_whose_files_are_not_all_here_is_not_published(tmp_path: Path, record: Record) -> None:
    saver = make(tmp_path, record)
    save(saver, 1, Workers(spoil=lose_shard))
    with pytest.raises(CheckpointError, match=r"must be on a disk that all nodes see. There is no complete one"):
        saver.finish()
    assert record.told == [("failed", 1)] and "actor/ lacks __0_0.distcp" in record.reasons[0]
    assert left(saver) == []


def test_a_part_that_is_not_here_at_all_is_missed(tmp_path: Path, record: Record) -> None:
    saver, elsewhere = make(tmp_path, record), Workers("critic")
    elsewhere.save_checkpoint = lambda folder, background: setattr(elsewhere, "folder", tmp_path / "node_1")  # type: ignore[method-assign]
    save(saver, 1, Workers(), elsewhere)
    saver.wait()
    assert record.told == [("failed", 1)] and "1 of 2 models are here" in record.reasons[0]


def test_a_disk_that_hangs_costs_saves_and_says_so_and_what_arrives_late_counts(
    tmp_path: Path, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_SAY_AFTER_S", -1.0)
    saver, workers = make(tmp_path, record, limit_s=0.5), Workers()
    workers.may_write.clear()
    save(saver, 1, workers)
    save(saver, 2, workers)
    assert record.told == [("waits", 1), ("failed", 1), ("failed", 2)]
    assert "was not written" in record.reasons[0] and "trainer.worker_timeout_s" in record.reasons[0]
    assert record.reasons[1] == "the disk still writes the checkpoint of step 1"
    with pytest.raises(CheckpointError, match=r"the last checkpoint, of step 2, could not be saved"):
        saver.finish()
    thread = saver._thread
    assert thread is not None
    workers.may_write.set()
    thread.join(LIMIT_S)
    assert record.told[-1] == ("saved", 1) and saver.saved_step == 1
    saver.limit_s = LIMIT_S
    save(saver, 3, workers)
    saver.finish()
    assert left(saver) == ["global_step_1", "global_step_3"]


def test_a_run_that_waits_for_a_save_can_be_told_to_stop(tmp_path: Path, record: Record) -> None:
    saver, workers = make(tmp_path, record), Workers()
    workers.may_write.clear()
    save(saver, 1, workers)

    def stop() -> None:
        raise KeyboardInterrupt

    on_stop_point(stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            saver.finish()
    finally:
        off_stop_point(stop)
        workers.may_write.set()
    saver.finish()
    assert record.told == [("saved", 1)]


def test_nothing_is_removed_while_another_worker_still_writes_into_it(tmp_path: Path, record: Record) -> None:
    def fail(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    saver, broken, slow = make(tmp_path, record), Workers(spoil=fail), Workers("critic")
    slow.may_write.clear()
    save(saver, 1, broken, slow)
    assert broken.was_asked.wait(LIMIT_S)
    while saver._thread is not None and saver._thread.is_alive() and not slow.was_asked.wait(0.05):
        pass
    assert slow.folder.is_dir() and record.told == []
    slow.may_write.set()
    saver.wait()
    assert record.told == [("failed", 1)] and "No space left" in record.reasons[0]
    assert not slow.folder.exists() and left(saver) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_that_is_not_an_exception_is_a_failed_save_too(tmp_path: Path, record: Record) -> None:
    class NotAnException(BaseException):
        pass

    def fail(folder: Path) -> None:
        raise NotAnException("odd")

    saver = make(tmp_path, record)
    save(saver, 1, Workers(spoil=fail))
    saver.wait()
    assert record.told == [("failed", 1)] and not list(saver.store.folder.glob(".staging*"))
