from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

from podium.checkpoint.remote import RemoteStore, Uploader, without_login
from podium.checkpoint.store import CheckpointStore
from podium.errors import CheckpointError


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path / 'far'}" if request.param == "file" else f"memory://{uuid.uuid4().hex}/run"


def fill(folder: Path) -> None:
    (folder / "hf").mkdir()
    (folder / "hf" / "w.bin").write_bytes(b"w" * 1000)


def make(folder: Path, *steps: int) -> CheckpointStore:
    store = CheckpointStore(folder / "checkpoints")
    for step in steps:
        store.save(step, {"global_steps": step}, fill)
    return store


def test_another_machine_resumes_from_what_was_uploaded(tmp_path: Path, url: str) -> None:
    store, events = make(tmp_path, 1, 2), list[tuple[str, Any]]()
    uploader = Uploader(RemoteStore(url), lambda kind, **details: events.append((kind, details)))
    for path in store.steps().values():
        uploader.add(path)
    uploader.finish()
    uploader.close()
    assert [kind for kind, _ in events] == ["checkpoint_uploaded"] * 2
    elsewhere = CheckpointStore(tmp_path / "elsewhere")
    path, broken = RemoteStore(url).fetch(elsewhere)
    assert path == elsewhere.newest().path == elsewhere.folder / "global_step_2" and not broken
    assert (path / "hf" / "w.bin").read_bytes() == b"w" * 1000


def test_nothing_is_fetched_when_the_local_one_is_as_new(tmp_path: Path, url: str) -> None:
    store = make(tmp_path, 2)
    RemoteStore(url).upload(store.steps()[2])
    assert RemoteStore(url).fetch(store) == (None, {})


def test_an_unfinished_or_damaged_upload_is_not_taken(tmp_path: Path, url: str) -> None:
    store, remote = make(tmp_path, 1, 2, 3), RemoteStore(url)
    for path in store.steps().values():
        remote.upload(path)
    remote.fs.rm(f"{remote.root}/global_step_3/manifest.json")
    remote.fs.pipe_file(f"{remote.root}/global_step_2/hf/w.bin", b"short")
    path, broken = remote.fetch(CheckpointStore(tmp_path / "elsewhere"))
    assert path is not None and path.name == "global_step_1"
    assert list(broken) == [2] and "w.bin has 5 bytes" in broken[2]


def test_a_failing_file_system_costs_the_upload_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, events = make(tmp_path, 1), list[tuple[str, Any]]()
    remote = RemoteStore(f"file://{tmp_path / 'far'}")

    def refuse(checkpoint: Path) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(remote, "upload", refuse)
    uploader = Uploader(remote, lambda kind, **details: events.append((kind, details)), pause_s=0.01)
    uploader.add(store.steps()[1])
    uploader.finish()
    uploader.close()
    assert [kind for kind, _ in events] == ["upload_failed"] and events[0][1]["reason"] == "no"


def test_old_uploads_are_thinned_out(tmp_path: Path, url: str) -> None:
    store = make(tmp_path, 1, 2, 3)
    uploader = Uploader(RemoteStore(url), lambda *_, **__: None, max_to_keep=2)
    for path in store.steps().values():
        uploader.add(path)
    uploader.finish()
    uploader.close()
    assert RemoteStore(url).steps() == [2, 3]


def test_a_manifest_that_names_files_outside_its_folder_is_refused(tmp_path: Path, url: str) -> None:
    store, remote = make(tmp_path, 1), RemoteStore(url)
    remote.upload(store.steps()[1])
    place = f"{remote.root}/global_step_1/manifest.json"
    remote.fs.pipe_file(place, remote.fs.cat_file(place).replace(b"hf/w.bin", b"../../evil"))
    with pytest.raises(CheckpointError, match="outside its folder"):
        remote.fetch(CheckpointStore(tmp_path / "elsewhere" / "deep"))
    shutil.rmtree(tmp_path / "elsewhere")


def test_an_unknown_kind_of_url_is_an_error_without_its_login() -> None:
    with pytest.raises(CheckpointError, match=r"nope://host/x cannot be used") as caught:
        RemoteStore("nope://me:secret@host/x")
    assert "secret" not in str(caught.value)
    assert without_login("s3://k:v@bucket/path") == "s3://bucket/path"
