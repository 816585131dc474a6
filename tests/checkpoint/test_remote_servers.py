"""`trainer.default_hdfs_dir` against real servers: the promises of test_remote.py where they can break."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from remote_servers import KEY, S3, SECRET, Gcs, Hdfs, Server, free_port, running, why_not

from podium.checkpoint.remote import RemoteStore, Uploader
from podium.checkpoint.store import CheckpointStore, Retention
from podium.errors import CheckpointError

Event = tuple[str, dict[str, Any]]
Place = tuple[Server, str]
STALL_S = 8.0  # hdfs-native waits without end for a NameNode that died within a write
FILES = {
    "actor/.metadata": b"{}",
    "actor/__0_0.distcp": bytes(range(256)) * 30_000,  # 7.7 MB: several blocks of a resumable upload and of HDFS
    "actor/empty": b"",
    "hf/a name, with = and ü.txt": b"odd",
    "hf/model.safetensors": b"w" * 300_000,
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Starts each server when it is first asked for."""
    from contextlib import ExitStack

    classes: dict[str, type[Server]] = {"s3": S3, "gs": Gcs, "hdfs": Hdfs, "webhdfs": Hdfs}
    started: dict[type[Server], Server] = {}
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:

        def get(kind: str) -> Server:
            if reason := why_not(kind):
                pytest.skip(reason)
            cls = classes[kind]
            if cls not in started:
                folder = tmp_path_factory.mktemp("servers") / kind
                started[cls] = stack.enter_context(running(cls(folder), patch))
            if not started[cls].processes:
                started[cls].start()
            return started[cls]

        yield get


@pytest.fixture(params=["s3", "gs", "hdfs", "webhdfs"])
def place(request: pytest.FixtureRequest, servers: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch) -> Place:
    """A server and a URL on it that nobody else uses."""
    server, name = servers(request.param), f"run-{uuid.uuid4().hex[:8]}"
    if request.param == "gs":  # six tries take its client a minute; here the pauses are short
        monkeypatch.setattr("gcsfs.retry.min", lambda *_: 0.05, raising=False)
    if request.param == "webhdfs":
        assert isinstance(server, Hdfs)
        return server, server.web_url(name)
    return server, server.url(name)


@pytest.fixture
def events() -> list[Event]:
    return []


def make(folder: Path, *steps: int, metrics: dict[int, float] | None = None) -> CheckpointStore:
    store = CheckpointStore(folder / "checkpoints")
    for step in steps:

        def fill(folder: Path, step: int = step) -> None:
            for name, content in FILES.items():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes(content + (str(step).encode() if content else b""))

        store.save(step, {"global_steps": step}, fill, {"score": (metrics or {}).get(step, 0.0)})
    return store


def start(
    url: str, events: list[Event], retention: Retention | None = None, pause_s: float = 0.1, tries: int = 4
) -> Uploader:
    return Uploader(
        RemoteStore(url, STALL_S), lambda kind, **more: events.append((kind, more)), retention, pause_s, tries
    )


def send(url: str, events: list[Event], store: CheckpointStore, retention: Retention | None = None) -> None:
    uploader = start(url, events, retention)
    for _, path in sorted(store.steps().items()):
        uploader.add(path)
        uploader.finish()
    uploader.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_new_machine_gets_the_same_bytes(tmp_path: Path, place: Place, events: list[Event]) -> None:
    store = make(tmp_path, 1, 2)
    send(place[1], events, store)
    assert [kind for kind, _ in events] == ["checkpoint_uploaded"] * 2
    elsewhere = CheckpointStore(tmp_path / "elsewhere")
    uploader = start(place[1], events)
    assert uploader.fetch(elsewhere) == {}
    uploader.close()
    assert list(elsewhere.steps()) == [2] and contents(elsewhere.steps()[2]) == contents(store.steps()[2])


def test_retention_keeps_the_newest_and_the_best(tmp_path: Path, place: Place, events: list[Event]) -> None:
    store = make(tmp_path, 1, 2, 3, 4, metrics={1: 0.9})
    send(place[1], events, store, Retention(2, "score"))
    remote = RemoteStore(place[1])
    assert remote.steps() == [1, 3, 4] and not [kind for kind, _ in events if kind != "checkpoint_uploaded"]
    assert not remote.fs.exists(f"{remote.root}/global_step_2/hf/model.safetensors")


def test_a_run_that_starts_anew_sets_the_old_ones_aside(tmp_path: Path, place: Place, events: list[Event]) -> None:
    old = make(tmp_path / "old", 7, 8)
    send(place[1], events, old)
    send(place[1], events, make(tmp_path / "new", 1))
    remote = RemoteStore(place[1])
    assert remote.steps() == [1]
    aside = f"{remote.root}/previous/1/global_step_8"
    assert remote.fs.cat_file(f"{aside}/hf/model.safetensors") == contents(old.steps()[8])["hf/model.safetensors"]
    assert remote.fs.cat_file(f"{aside}/manifest.json")


def test_a_server_killed_within_an_upload(
    tmp_path: Path, place: Place, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, url = place
    store = make(tmp_path, 1, 2)
    RemoteStore(url).upload(store.steps()[1])
    uploader = start(url, events, tries=2)
    if url.startswith("gs"):  # its client tells of a file when it is there: killed before the manifest
        put = RemoteStore._put
        monkeypatch.setattr(RemoteStore, "_put", lambda *args: (put(*args), server.kill()))
    else:  # within the bytes
        threading.Thread(target=kill_within, args=(server, uploader.remote), daemon=True).start()
    begun = time.monotonic()
    uploader.add(store.steps()[2])
    with pytest.raises(CheckpointError, match="could not be uploaded"):
        uploader.finish()
    monkeypatch.undo()
    assert time.monotonic() - begun < 300, "a dead server is given up within minutes"
    uploader.close()
    assert [kind for kind, _ in events] == ["upload_failed"]
    assert events[0][1]["path"].endswith("global_step_2") and url.partition("://")[0] in events[0][1]["reason"]

    server.start()
    remote = RemoteStore(url)
    assert remote.steps() == [1], "a torn upload does not count"
    elsewhere = CheckpointStore(tmp_path / "elsewhere")
    assert remote.fetch(elsewhere) == (elsewhere.folder / "global_step_1", {})
    again = start(url, events, Retention(1))
    again.fetch(store)  # the next start of the same run
    again.close()
    assert remote.steps() == [2] and events[-1][0] == "checkpoint_uploaded"


def kill_within(server: Server, remote: RemoteStore) -> None:
    """When a part of the bytes has moved."""
    while remote.progress.moved_bytes < 100_000:
        time.sleep(0.001)
    server.kill()


def test_a_server_that_comes_back_is_met_by_a_later_try(
    tmp_path: Path, servers: Callable[[str], Server], events: list[Event]
) -> None:
    server = servers("s3")
    url, store = server.url(f"run-{uuid.uuid4().hex[:8]}"), make(tmp_path, 1)
    uploader = start(url, events, pause_s=2.0)
    server.kill()
    uploader.add(store.steps()[1])
    time.sleep(1.0)
    server.start()
    uploader.finish()
    uploader.close()
    assert [kind for kind, _ in events] == ["checkpoint_uploaded"] and RemoteStore(url).steps() == [1]


def test_a_server_that_is_down_at_the_start(tmp_path: Path, place: Place, events: list[Event]) -> None:
    server, url = place
    if isinstance(server, Hdfs):  # it takes long to start again; nobody listens there either
        url = re.sub(r":\d+/", f":{free_port()}/", url)
    else:
        server.kill()
    uploader = start(url, events, tries=1)
    with pytest.raises(CheckpointError, match=r"trainer.default_hdfs_dir=.*There is no checkpoint here"):
        uploader.fetch(CheckpointStore(tmp_path / "empty"))
    uploader.close()


def test_large_files_go_to_s3_in_parts_and_an_interrupted_one_does_not_count(
    tmp_path: Path, servers: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers("s3")
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, {}, lambda folder: (folder / "big.distcp").write_bytes(bytes(110 << 20)))
    remote = RemoteStore(server.url(f"run-{uuid.uuid4().hex[:8]}"))
    calls: list[str] = []
    call = type(remote.fs)._call_s3

    async def listen(self: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        calls.append(method)
        if method == "complete_multipart_upload" and calls.count(method) == 1:
            raise ConnectionResetError("cut")
        return await call(self, method, *args, **kwargs)

    monkeypatch.setattr(type(remote.fs), "_call_s3", listen)
    with pytest.raises(ConnectionResetError):
        remote.upload(store.steps()[1])
    assert calls.count("upload_part") == 3 and "abort_multipart_upload" in calls
    assert remote.steps() == [] and not remote.fs.exists(f"{remote.root}/global_step_1/big.distcp")
    remote.upload(store.steps()[1], again=True)
    assert remote.steps() == [1] and calls.count("upload_part") == 6


@pytest.mark.parametrize("wrong", ["key", "secret", "bucket"])
def test_wrong_credentials_are_said_at_the_start_without_them(
    wrong: str, tmp_path: Path, servers: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch, events: list[Event]
) -> None:
    url = servers("s3").url("run").replace("bucket", "no-such-bucket" if wrong == "bucket" else "bucket")
    given = {"key": ("AWS_ACCESS_KEY_ID", "WRONG-KEY-1234"), "secret": ("AWS_SECRET_ACCESS_KEY", "wrong-secret-1234")}
    if wrong in given:
        monkeypatch.setenv(*given[wrong])
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    uploader = start(url, events)
    begun = time.monotonic()
    with pytest.raises(CheckpointError, match=r"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") as caught:
        uploader.fetch(CheckpointStore(tmp_path / "empty"))
    assert time.monotonic() - begun < 20, "not tried again"
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    expected = {"key": "does not exist in our records", "secret": "signature", "bucket": "bucket does not exist"}
    assert expected[wrong] in str(caught.value)
    assert not any(secret in str(caught.value) for secret in (KEY, SECRET, "WRONG-KEY-1234", "wrong-secret-1234"))
    uploader.add(make(tmp_path, 1).steps()[1])
    with pytest.raises(CheckpointError, match="could not be uploaded"):
        uploader.finish()
    uploader.close()


def test_a_folder_of_somebody_else_is_an_error(
    tmp_path: Path, servers: Callable[[str], Server], events: list[Event]
) -> None:
    server = servers("webhdfs")
    assert isinstance(server, Hdfs)
    name = f"run-{uuid.uuid4().hex[:8]}"
    RemoteStore(server.web_url(name)).upload(make(tmp_path, 1).steps()[1])
    uploader = start(server.web_url(name, user="stranger"), events)
    with pytest.raises(CheckpointError, match=r"403 Client Error: Forbidden"):
        uploader.fetch(CheckpointStore(tmp_path / "empty"))
    uploader.close()


def test_an_endpoint_in_fsspecs_own_setting(
    tmp_path: Path, servers: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers("s3")
    options = {"endpoint_url": server.environ()["AWS_ENDPOINT_URL"], "key": KEY, "secret": SECRET}
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setitem(fsspec.config.conf, "s3", options)  # as FSSPEC_S3_ENDPOINT_URL, _KEY and _SECRET do
    remote = RemoteStore(server.url(f"run-{uuid.uuid4().hex[:8]}"))
    remote.upload(make(tmp_path, 1).steps()[1])
    assert remote.steps() == [1]
