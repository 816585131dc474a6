from __future__ import annotations

import importlib.util
import json
import logging
import shutil
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from podium.checkpoint.file_systems import Stalled
from podium.checkpoint.remote import RemoteStore, Uploader, make_uploader, without_login
from podium.checkpoint.store import CheckpointStore, Retention
from podium.errors import CheckpointError
from podium.stop_points import off_stop_point, on_stop_point
from podium.trainer.saving import open_store

Event = tuple[str, dict[str, Any]]


class Weak(MemoryFileSystem):  # type: ignore[misc]
    """A file system that breaks down after some writes."""

    protocol = "weak"
    writes_left = 10**9

    def put_file(self, lpath: Any, rpath: Any, **kwargs: Any) -> None:
        self._write()
        super().put_file(lpath, rpath, **kwargs)

    def pipe_file(self, path: Any, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        self._write()
        super().pipe_file(path, value, mode, **kwargs)

    def ls(self, path: Any, detail: bool = True, **kwargs: Any) -> Any:
        if Weak.writes_left < 0:
            raise ConnectionError("nobody answers; the key was hunter2-hunter2")
        return super().ls(path, detail, **kwargs)

    def _write(self) -> None:
        Weak.writes_left -= 1
        if Weak.writes_left < 0:
            raise ConnectionError("nobody answers; the key was hunter2-hunter2")


fsspec.register_implementation("weak", Weak, clobber=True)


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path / 'far'}" if request.param == "file" else f"memory://{uuid.uuid4().hex}/run"


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Weak, "writes_left", 10**9)
    return f"weak://{uuid.uuid4().hex}/run"


@pytest.fixture
def events() -> list[Event]:
    return []


def fill(folder: Path) -> None:
    (folder / "hf").mkdir()
    (folder / "hf" / "w.bin").write_bytes(b"w" * 1000)


def make(folder: Path, *steps: int, metrics: dict[int, float] | None = None) -> CheckpointStore:
    store = CheckpointStore(folder / "checkpoints")
    for step in steps:
        store.save(step, {"global_steps": step}, fill, {"val/score": (metrics or {}).get(step, 0.0)})
    return store


def start(url: str, events: list[Event], retention: Retention | None = None) -> Uploader:
    return Uploader(RemoteStore(url), lambda kind, **more: events.append((kind, more)), retention, pause_s=0.01)


def send(url: str, events: list[Event], store: CheckpointStore, retention: Retention | None = None) -> None:
    uploader = start(url, events, retention)
    for _, path in sorted(store.steps().items()):
        uploader.add(path)
        uploader.finish()
    uploader.close()


def test_another_machine_resumes_from_what_was_uploaded(tmp_path: Path, url: str, events: list[Event]) -> None:
    send(url, events, make(tmp_path, 1, 2))
    assert [kind for kind, _ in events] == ["checkpoint_uploaded"] * 2
    elsewhere = CheckpointStore(tmp_path / "elsewhere")
    path, broken = RemoteStore(url).fetch(elsewhere)
    assert path == elsewhere.newest().path == elsewhere.folder / "global_step_2" and not broken
    assert (path / "hf" / "w.bin").read_bytes() == b"w" * 1000


def test_nothing_is_fetched_when_the_local_one_is_as_new(tmp_path: Path, url: str) -> None:
    store = make(tmp_path, 2)
    RemoteStore(url).upload(store.steps()[2])
    assert RemoteStore(url).fetch(store) == (None, {})


def test_an_unfinished_or_damaged_upload_is_not_taken(tmp_path: Path, url: str, events: list[Event]) -> None:
    send(url, events, make(tmp_path, 1, 2, 3, 4, 5))
    remote = RemoteStore(url)
    place = f"{remote.root}/global_step_"
    remote.fs.rm(f"{place}5/hf/w.bin")
    remote.fs.pipe_file(f"{place}4/manifest.json", b'{"format": 1, "fil')
    remote.fs.rm(f"{place}3/manifest.json")
    remote.fs.pipe_file(f"{place}2/hf/w.bin", b"short")
    path, broken = remote.fetch(CheckpointStore(tmp_path / "elsewhere"))
    assert path is not None and path.name == "global_step_1"
    assert list(broken) == [5, 4, 2] and "missing" in broken[5] and "cannot be read" in broken[4]
    assert "w.bin has 5 bytes" in broken[2]


def test_a_failing_file_system_costs_the_upload_not_the_run(tmp_path: Path, weak: str, events: list[Event]) -> None:
    store, uploader = make(tmp_path, 1, 2), start(weak, events)
    Weak.writes_left = 2  # two of the four files of step 1
    uploader.add(store.steps()[1])
    with pytest.raises(CheckpointError, match=r"global_step_1 is saved, but could not be uploaded.*nobody answers"):
        uploader.finish()
    assert [kind for kind, _ in events] == ["upload_failed"] and events[0][1]["path"].endswith("global_step_1")
    Weak.writes_left = 10**9
    assert RemoteStore(weak).steps() == []
    uploader.add(store.steps()[2])
    uploader.finish()
    assert RemoteStore(weak).steps() == [2], "what is lost is made good by a later one"
    assert not RemoteStore(weak).fs.exists(f"{uploader.remote.root}/global_step_1"), "a torn upload takes no room"
    uploader.close()


def test_a_second_try_sends_only_what_has_not_arrived(
    tmp_path: Path, weak: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, remote = make(tmp_path, 1), RemoteStore(weak)
    Weak.writes_left = 1
    with pytest.raises(ConnectionError):
        remote.upload(store.steps()[1])
    sent: list[str] = []
    Weak.writes_left = 10**9
    put_file = Weak.put_file
    monkeypatch.setattr(Weak, "put_file", lambda s, a, b, **k: (sent.append(Path(a).name), put_file(s, a, b, **k)))
    remote.upload(store.steps()[1], again=True)
    assert sorted(sent) == ["manifest.json", "trainer.json"] and remote.steps() == [1]


def test_no_secret_is_in_a_log_or_an_event(
    tmp_path: Path, weak: str, events: list[Event], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploader = start(weak, events)
    monkeypatch.setattr(uploader.remote.fs, "storage_options", {"client_kwargs": {"secret": "hunter2-hunter2"}})
    Weak.writes_left = 0
    with caplog.at_level(logging.DEBUG):
        uploader.add(make(tmp_path, 1).steps()[1])
        with pytest.raises(CheckpointError) as caught:
            uploader.finish()
    uploader.close()
    assert "nobody answers; the key was ***" in caplog.text and "nobody answers" in str(events)
    assert "hunter2" not in caplog.text + str(events) + str(caught.value)


def test_old_uploads_are_thinned_out_and_the_best_stays(tmp_path: Path, url: str, events: list[Event]) -> None:
    store = make(tmp_path, 1, 2, 3, 4, metrics={2: 0.9, 4: 0.5})
    send(url, events, store, Retention(2, "val/score"))
    assert RemoteStore(url).steps() == [2, 3, 4]
    send(url, events, make(tmp_path / "later", 5), Retention(2))
    assert RemoteStore(url).steps() == [4, 5]


def test_an_upload_that_worked_is_not_repeated_because_thinning_out_failed(
    tmp_path: Path, url: str, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: RemoteStore, retention: Retention) -> None:
        raise PermissionError("may write, may not delete")

    monkeypatch.setattr(RemoteStore, "retain", refuse)
    send(url, events, make(tmp_path, 1))
    assert [kind for kind, _ in events] == ["checkpoint_uploaded", "remote_failed"]
    assert "may not delete" in events[1][1]["reason"]


def test_uploads_that_fall_behind_are_skipped_not_piled_up(
    tmp_path: Path, url: str, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path, 1, 2, 3, 4, 5)
    upload = RemoteStore.upload
    uploader = start(url, events, Retention(2))

    def slow(self: RemoteStore, checkpoint: Path, again: bool = False) -> None:
        while len(uploader.waiting()) < 5 and checkpoint.name == "global_step_1":
            pass
        upload(self, checkpoint, again)

    monkeypatch.setattr(RemoteStore, "upload", slow)
    for _, path in sorted(store.steps().items()):
        uploader.add(path)
    uploader.finish()
    uploader.close()
    kinds = {Path(more["path"]).name: kind for kind, more in events}
    assert kinds["global_step_2"] == kinds["global_step_3"] == "upload_skipped"
    assert RemoteStore(url).steps() == [4, 5]


def test_a_run_that_starts_anew_sets_the_old_ones_aside(tmp_path: Path, url: str, events: list[Event]) -> None:
    send(url, events, make(tmp_path / "old", 7, 8))
    send(url, events, make(tmp_path / "new", 1, 2), Retention(2))
    remote = RemoteStore(url)
    assert remote.steps() == [1, 2], "or the old run would be gone on with"
    assert remote.fs.exists(f"{remote.root}/previous/1/global_step_8/hf/w.bin"), "and they are not lost"


def test_what_never_arrived_is_sent_by_the_next_start(tmp_path: Path, url: str, events: list[Event]) -> None:
    store, uploader = make(tmp_path, 1, 2), start(url, events)
    uploader.remote.upload(store.steps()[1])
    assert uploader.fetch(store) == {}
    uploader.close()
    assert RemoteStore(url).steps() == [1, 2]


def test_without_an_answer_a_run_goes_on_from_here_but_does_not_start_anew(
    tmp_path: Path, weak: str, events: list[Event]
) -> None:
    uploader = start(weak, events)
    Weak.writes_left = -1
    with pytest.raises(CheckpointError, match=r"default_hdfs_dir=weak://.*nobody answers.*no checkpoint here"):
        uploader.fetch(CheckpointStore(tmp_path / "empty"))
    assert uploader.fetch(make(tmp_path, 3)) == {} and [kind for kind, _ in events] == ["remote_failed"]
    uploader.close()


def test_a_manifest_that_names_files_outside_its_folder_is_refused(
    tmp_path: Path, url: str, events: list[Event]
) -> None:
    store, remote = make(tmp_path, 1), RemoteStore(url)
    remote.upload(store.steps()[1])
    place = f"{remote.root}/global_step_1/manifest.json"
    hostile = json.loads(remote.fs.cat_file(place).replace(b"hf/w.bin", b"../../evil")) | {"format": 1}
    remote.fs.pipe_file(place, json.dumps(hostile).encode())
    uploader = start(url, events)
    with pytest.raises(CheckpointError, match="outside its folder"):
        uploader.fetch(CheckpointStore(tmp_path / "elsewhere" / "deep"))
    uploader.close()
    assert not list(tmp_path.rglob("evil"))
    shutil.rmtree(tmp_path / "elsewhere")


def make_other(folder: Path, *steps: int) -> CheckpointStore:
    """Checkpoints of another run: files of the same sizes, other bytes."""
    store = CheckpointStore(folder / "checkpoints")
    for step in steps:
        store.save(step, {"global_steps": step}, fill_otherwise, {"val/score": 0.9})
    return store


def fill_otherwise(folder: Path) -> None:
    fill(folder)
    (folder / "hf" / "w.bin").write_bytes(b"o" * 1000)


def weights(remote: RemoteStore, step: int) -> bytes:
    content: bytes = remote.fs.cat_file(f"{remote.root}/global_step_{step}/hf/w.bin")
    return content[:1]


@pytest.mark.parametrize("inside", ["_set_aside", "_remove"])
def test_a_blip_before_the_first_byte_does_not_leave_an_old_runs_weights(
    tmp_path: Path, url: str, events: list[Event], monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    send(url, events, make_other(tmp_path / "old", 5, 10))
    uploader = start(url, events)
    real, calls = getattr(uploader.remote, inside), list[int]()

    def blip(*args: Any, **kwargs: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("blip")
        real(*args, **kwargs)

    monkeypatch.setattr(uploader.remote, inside, blip)
    uploader.add(make(tmp_path / "new", 5).steps()[5])
    uploader.finish()
    uploader.close()
    assert uploader.remote.steps() == [5] and weights(uploader.remote, 5) == b"w"
    path, broken = RemoteStore(url).fetch(CheckpointStore(tmp_path / "elsewhere"))
    assert path is not None and path.name == "global_step_5" and not broken


def test_a_run_that_was_started_anew_does_not_fetch_the_old_one(tmp_path: Path, url: str, events: list[Event]) -> None:
    send(url, events, make_other(tmp_path / "old", 3, 100))
    store, uploader = CheckpointStore(tmp_path / "new" / "checkpoints"), start(url, events, Retention(1, "val/score"))
    assert open_store(store, uploader, "disable").path is None
    assert open_store(store, uploader, "auto").path is None, "workers lost before the first save"
    assert uploader.remote.steps() == [3, 100], "and until there is something better the old ones stay"
    uploader.close()
    make(tmp_path / "new", 5)
    uploader = start(url, events, Retention(1, "val/score"))
    found = open_store(store, uploader, "auto").path
    assert found is not None and found.name == "global_step_5", "killed before the first upload"
    uploader.finish()
    uploader.close()
    remote = RemoteStore(url)
    assert remote.steps() == [5] and weights(remote, 5) == b"w", "an abandoned run's step is not the best of this one"
    assert remote.fs.exists(f"{remote.root}/previous/1/global_step_3/hf/w.bin")
    elsewhere = CheckpointStore(tmp_path / "elsewhere")
    uploader = start(url, events)
    assert open_store(elsewhere, uploader, "auto").path == elsewhere.folder / "global_step_5"
    uploader.close()


def test_a_run_that_goes_back_to_a_step_leaves_the_later_ones(tmp_path: Path, url: str, events: list[Event]) -> None:
    store = make(tmp_path, 1, 2, 3)
    send(url, events, store)
    uploader = start(url, events)
    open_store(store, uploader, str(store.steps()[1]))
    store.set_aside(tmp_path / "previous", after=1)
    found = open_store(store, uploader, "auto").path
    assert found is not None and found.name == "global_step_1"
    for step in (4, 5):
        uploader.add(make(tmp_path, step).steps()[step])
        uploader.finish()
    uploader.close()
    assert RemoteStore(url).steps() == [1, 4, 5], "2 and 3 are of the way that was left"


def test_a_run_from_another_runs_checkpoint_shares_no_step_with_what_is_there(
    tmp_path: Path, url: str, events: list[Event]
) -> None:
    send(url, events, make_other(tmp_path / "old", 2, 9))
    store, uploader = CheckpointStore(tmp_path / "new" / "checkpoints"), start(url, events)
    foreign = make(tmp_path / "foreign", 4).steps()[4]
    assert open_store(store, uploader, str(foreign)).path == foreign
    assert open_store(store, uploader, "auto").path is None
    uploader.close()


@pytest.mark.parametrize("mode", ["disable", "a path", "auto"])
def test_a_place_that_cannot_be_written_to_is_said_at_the_start(
    tmp_path: Path, weak: str, events: list[Event], mode: str
) -> None:
    uploader, path = start(weak, events), make(tmp_path, 1).steps()[1]
    Weak.writes_left = 0
    with pytest.raises(
        CheckpointError, match=r"default_hdfs_dir=weak://.*nobody answers.*set trainer.default_hdfs_dir"
    ):
        open_store(CheckpointStore(tmp_path / "new"), uploader, str(path) if mode == "a path" else mode)
    uploader.close()


def test_a_restart_of_a_run_started_anew_needs_no_answer(tmp_path: Path, weak: str, events: list[Event]) -> None:
    store, uploader = CheckpointStore(tmp_path / "new"), start(weak, events)
    open_store(store, uploader, "disable")
    Weak.writes_left = -1
    assert open_store(store, uploader, "auto").path is None and events[-1][0] == "remote_failed"
    uploader.close()


def test_a_score_that_is_no_number_is_not_the_best(tmp_path: Path, url: str) -> None:
    store, remote = make(tmp_path, 1, 2, 3, 4, metrics={1: float("nan"), 2: 0.9, 3: 0.1, 4: 0.2}), RemoteStore(url)
    for path in store.steps().values():
        remote.upload(path)
    remote.fs.pipe_file(f"{remote.root}/global_step_3/manifest.json", b"{")
    remote.retain(Retention(1, "val/score"))
    assert remote.steps() == [2, 4]


def test_closing_says_what_it_waits_for_and_skips_what_a_newer_one_replaces(
    tmp_path: Path, url: str, events: list[Event], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, uploader = make(tmp_path, 1, 2, 3), start(url, events)
    upload, go_on = RemoteStore.upload, threading.Event()

    def slow(self: RemoteStore, checkpoint: Path, again: bool = False) -> None:
        assert go_on.wait(300)
        upload(self, checkpoint, again)

    monkeypatch.setattr(RemoteStore, "upload", slow)
    monkeypatch.setattr("podium.checkpoint.remote._SAY_AFTER_S", 0.0)
    for _, path in sorted(store.steps().items()):
        uploader.add(path)
    while not uploader.waiting():
        time.sleep(0.01)

    def waits() -> list[str]:
        return [record.getMessage() for record in caplog.records if "waiting until" in record.getMessage()]

    def let_go_on() -> None:
        while not waits():
            time.sleep(0.01)
        time.sleep(0.7)  # several looks later
        go_on.set()

    with caplog.at_level(logging.WARNING):
        thread = threading.Thread(target=let_go_on, daemon=True)
        thread.start()
        uploader.close()
    said = waits()
    assert len(said) == 1 and "global_step_3" in said[0] and uploader.remote.url in said[0]
    assert 3 in RemoteStore(url).steps() and 2 not in RemoteStore(url).steps()
    assert ("upload_skipped", "global_step_2") in [(kind, Path(more["path"]).name) for kind, more in events]


def test_closing_tries_an_outdated_upload_no_further(tmp_path: Path, weak: str, events: list[Event]) -> None:
    store = make(tmp_path, 1, 2)
    uploader = Uploader(RemoteStore(weak), lambda kind, **more: events.append((kind, more)), pause_s=0.5)
    uploader._closing = True  # as close() does, before the thread comes to the first one's failure
    tried: list[str] = []
    upload = uploader.remote.upload

    def fail(checkpoint: Path, again: bool = False) -> None:
        tried.append(checkpoint.name)
        if checkpoint.name == "global_step_1":
            uploader.add(store.steps()[2])
            raise ConnectionError("blip")
        upload(checkpoint, again)

    uploader.remote.upload = fail  # type: ignore[method-assign]
    uploader.add(store.steps()[1])
    uploader.close()
    assert tried == ["global_step_1", "global_step_2"] and RemoteStore(weak).steps() == [2]


class Told(BaseException):
    pass


@pytest.mark.parametrize("mode", ["auto", "disable"])
def test_a_run_that_is_told_to_stop_does_not_sit_out_the_pauses_at_the_start(
    tmp_path: Path, weak: str, mode: str
) -> None:
    """Told in the pause after the first failure, which would last an hour."""
    uploader = Uploader(RemoteStore(weak), lambda *_, **__: None, pause_s=3600.0, tries=2)
    Weak.writes_left = 0

    def ask() -> None:
        if Weak.writes_left < 0:  # it was tried
            raise Told

    on_stop_point(ask)
    try:
        with pytest.raises(Told):
            open_store(CheckpointStore(tmp_path / "new"), uploader, mode)
    finally:
        off_stop_point(ask)
    uploader.close()


def test_the_wait_for_uploads_can_be_left(
    tmp_path: Path, url: str, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    uploader, go_on = start(url, events), threading.Event()
    monkeypatch.setattr(RemoteStore, "upload", lambda *_, **__: go_on.wait(600))

    def ask() -> None:
        raise Told

    uploader.add(make(tmp_path, 1).steps()[1])
    on_stop_point(ask)
    try:
        for wait in (uploader.finish, uploader.close):
            with pytest.raises(Told):
                wait()
    finally:
        off_stop_point(ask)
        go_on.set()
    uploader.close()


def test_a_server_that_says_nothing_is_left_after_a_while(tmp_path: Path) -> None:
    pytest.importorskip("requests")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        remote = RemoteStore(f"webhdfs://127.0.0.1:{silent.getsockname()[1]}/run", stall_s=0.5)
        with pytest.raises(Stalled, match=r"uploading to webhdfs://127.0.0.1:\d+/run: nothing moved for 0.5 s"):
            remote.upload(make(tmp_path, 1).steps()[1])
        with pytest.raises(Stalled, match="listing"):
            remote.fetch(CheckpointStore(tmp_path / "elsewhere"))


def test_an_unknown_kind_of_url_is_an_error_without_its_login() -> None:
    with pytest.raises(CheckpointError, match=r"nope://host/x cannot be used") as caught:
        RemoteStore("nope://me:secret@host/x")
    assert "secret" not in str(caught.value)
    assert without_login("s3://k:v@bucket/path?token=t") == "s3://bucket/path"


@pytest.mark.parametrize("url", ["s3://key:hidden@bucket/run", "webhdfs://host/run?delegation=hidden"])
def test_a_secret_in_the_url_is_refused(url: str) -> None:
    with pytest.raises(CheckpointError, match="Leave it out of the URL and set") as caught:
        make_uploader(url, lambda *_, **__: None, None)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(("kind", "package"), [("s3", "s3fs"), ("gs", "gcsfs"), ("hdfs", "hdfs-native")])
def test_a_missing_package_is_named(kind: str, package: str) -> None:
    if importlib.util.find_spec(package.replace("-", "_")):
        pytest.skip(f"{package} is installed here")
    with pytest.raises(
        CheckpointError, match=rf"{kind}://bucket/run cannot be used: .*pip install {package}"
    ) as caught:
        RemoteStore(f"{kind}://bucket/run")
    assert len(str(caught.value)) < 600, "a sentence, not a traceback"
