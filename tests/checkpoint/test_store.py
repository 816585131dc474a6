from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podium.checkpoint import manifest
from podium.checkpoint.store import CheckpointStore, Retention, find_checkpoint
from podium.errors import CheckpointError


def fill(folder: Path) -> None:
    (folder / "actor").mkdir()
    (folder / "actor" / "a.bin").write_bytes(bytes(range(200)))
    (folder / "hf").mkdir()
    (folder / "hf" / "config.json").write_text("{}")


def make(folder: Path, *steps: int, retention: Retention | None = None) -> CheckpointStore:
    store = CheckpointStore(folder / "checkpoints", retention)
    for step in steps:
        store.save(step, {"global_steps": step}, fill, metrics={"val": float(step % 3)})
    return store


def test_what_is_published_is_complete_and_latest_names_it(tmp_path: Path) -> None:
    store = make(tmp_path, 1, 2)
    found = store.newest()
    assert found.path == tmp_path / "checkpoints" / "global_step_2" and not found.broken
    assert (tmp_path / "checkpoints" / "latest").read_text() == "global_step_2"
    assert store.read_state(found.path)["global_steps"] == 2
    assert sorted(os.listdir(store.folder)) == ["global_step_1", "global_step_2", "latest"]


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    store = make(tmp_path, 1)

    def fail(folder: Path) -> None:
        fill(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        store.save(2, {}, fail)
    assert sorted(os.listdir(store.folder)) == ["global_step_1", "latest"]


def damage_truncate(path: Path) -> None:
    os.truncate(path / "actor" / "a.bin", 100)


def damage_flip(path: Path) -> None:
    content = bytearray((path / "actor" / "a.bin").read_bytes())
    content[77] ^= 4
    (path / "actor" / "a.bin").write_bytes(content)


def damage_remove(path: Path) -> None:
    (path / "trainer.json").unlink()


def damage_manifest(path: Path) -> None:
    (path / "manifest.json").write_text('{"files": ')


def damage_no_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_truncate, "a.bin has 100 bytes"),
        (damage_flip, "a.bin differs from its checksum"),
        (damage_remove, "trainer.json is missing"),
        (damage_manifest, "cannot be read"),
        (damage_no_manifest, "no manifest.json"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path: Path, damage: object, reason: str) -> None:
    store = make(tmp_path, 1, 2)
    assert callable(damage)
    damage(store.steps()[2])
    found = store.find("auto")
    assert found.path == store.steps()[1]
    assert list(found.broken) == [store.steps()[2]] and reason in found.broken[store.steps()[2]]
    with pytest.raises(CheckpointError, match="cannot be used"):
        store.find(str(store.steps()[2]))


@settings(max_examples=50, deadline=None)
@given(position=st.integers(0, 10**9), bit=st.integers(0, 7), choice=st.integers(0, 10**9))
def test_any_flipped_bit_of_any_file_is_found(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int, choice: int
) -> None:
    path = make(tmp_path_factory.mktemp("flip"), 1).steps()[1]
    files = sorted(p for p in path.rglob("*") if p.is_file())
    victim = files[choice % len(files)]
    content = bytearray(victim.read_bytes())
    content[position % len(content)] ^= 1 << bit
    victim.write_bytes(content)
    assert manifest.find_fault(path) is not None


def test_every_flipped_bit_of_a_manifest_is_found(tmp_path: Path) -> None:
    text = (make(tmp_path, 1).steps()[1] / manifest.NAME).read_bytes()
    manifest.parse_manifest(text.decode(), "here")
    for number in range(8 * len(text)):
        content = bytearray(text)
        content[number // 8] ^= 1 << number % 8
        with pytest.raises((CheckpointError, UnicodeDecodeError)):
            manifest.parse_manifest(content.decode(), "here")


def old(path: Path) -> dict[str, Any]:
    """The manifest as versions wrote it that did not check it."""
    known: dict[str, Any] = json.loads((path / manifest.NAME).read_text())
    del known["checksum"]
    return known | {"format": 1}


def test_a_manifest_without_a_checksum_of_its_own_is_read(tmp_path: Path) -> None:
    path = make(tmp_path, 1).steps()[1]
    (path / manifest.NAME).write_text(json.dumps(old(path), indent=1))
    assert manifest.find_fault(path) is None
    damage_flip(path)
    assert "a.bin differs" in str(manifest.find_fault(path))


@pytest.mark.parametrize(
    "damage",
    [
        {"files": {"actor/a.bin": {"bytex": 200, "sha256": ""}}},
        {"files": {"actor/a.bin": {"bytes": 200}}},
        {"files": {"actor/a.bin": {"bytes": "200", "sha256": ""}}},
        {"files": {"actor/a.bin": 200}},
        {"files": ["actor/a.bin"]},
        {"metrics": [1]},
    ],
)
def test_an_old_manifest_of_another_shape_is_named(tmp_path: Path, damage: dict[str, Any]) -> None:
    store = make(tmp_path, 1, 2, retention=Retention(1, "val"))
    path = store.steps()[2]
    (path / manifest.NAME).write_text(json.dumps(old(path) | damage))
    assert "is not a manifest" in str(manifest.find_fault(path))
    assert store.find("auto").path == store.steps()[1] and store.best_step() == 1


def test_must_says_what_is_wrong_with_each(tmp_path: Path) -> None:
    store = make(tmp_path, 3)
    damage_truncate(store.steps()[3])
    with pytest.raises(CheckpointError, match=r"(?s)no checkpoint.*global_step_3.*a.bin has 100 bytes"):
        store.find("must")
    assert store.find("auto").path is None


@pytest.mark.slow
def test_kills_at_fifty_moments_of_a_save_never_cost_the_newest_complete_one(tmp_path: Path) -> None:
    store, killed = make(tmp_path, 1), 0
    for number in range(50):
        child = os.fork()
        if child == 0:  # the child kills itself before its number-th system call that changes the folder
            _die_at(number % 25)
            try:
                store.save(2 + number // 25, {"global_steps": 2}, fill)
                store.retain()
            finally:
                os._exit(0)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        fresh = CheckpointStore(store.folder)
        assert fresh.newest().path is not None
        fresh.clean()
        found = fresh.newest()
        assert found.path is not None and not found.broken
        assert not [name for name in os.listdir(store.folder) if name.startswith(".")]
    assert killed > 30, "the kills hit"


def _die_at(number: int) -> None:
    count = [0]

    def counted(function: object) -> object:
        def call(*args: object, **kwargs: object) -> object:
            if count[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
            count[0] += 1
            assert callable(function)
            return function(*args, **kwargs)

        return call

    for name in ("rename", "replace", "mkdir", "fsync", "rmdir", "unlink"):
        setattr(os, name, counted(getattr(os, name)))


def test_only_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    store = make(tmp_path, 1, 2, 3, 4, 6, 7, retention=Retention(2, "val", best_is_max=True))
    store.retain()
    assert sorted(store.steps()) == [2, 6, 7], "two newest, and step 2 with the best value"
    store.retention = Retention(1, "val", best_is_max=False)
    store.retain()
    assert sorted(store.steps()) == [6, 7], "step 6 has the lowest value"
    assert not [name for name in os.listdir(store.folder) if name.startswith(".")]


def test_a_checkpoint_in_use_is_not_removed(tmp_path: Path) -> None:
    store = make(tmp_path, 1, 2, 3, retention=Retention(1))
    store.retain(in_use=[store.steps()[1]])
    assert sorted(store.steps()) == [1, 3]


def test_the_same_step_can_be_saved_again(tmp_path: Path) -> None:
    store = make(tmp_path, 1)
    store.save(1, {"global_steps": 1, "again": True}, fill)
    found = store.newest().path
    assert found is not None and json.loads((found / "trainer.json").read_text())["again"]


def test_a_replaced_checkpoint_comes_back_when_the_replacement_was_cut_off(tmp_path: Path) -> None:
    store = make(tmp_path, 1)
    store.steps()[1].rename(store.folder / ".replaced_global_step_1")
    store.clean()
    assert store.newest().path == store.folder / "global_step_1"


def test_a_way_that_is_left_is_set_aside(tmp_path: Path) -> None:
    store = make(tmp_path, 1, 2, 3)
    store.set_aside(tmp_path / "previous", after=1)
    assert sorted(store.steps()) == [1]
    assert sorted(p.name for p in (tmp_path / "previous").iterdir()) == ["global_step_2", "global_step_3"]


def test_a_checkpoint_is_found_from_the_run_folder_or_its_own(tmp_path: Path) -> None:
    store = make(tmp_path, 1, 2)
    assert find_checkpoint(tmp_path) == find_checkpoint(store.folder) == store.steps()[2]
    assert find_checkpoint(tmp_path, step=1) == store.steps()[1] == find_checkpoint(store.steps()[1])
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 9; it has 1, 2"):
        find_checkpoint(tmp_path, step=9)


def test_a_metric_that_is_no_number_is_not_the_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, Retention(1, "val"))
    for step, value in enumerate((float("nan"), 0.9, float("inf"), 0.1), start=1):
        store.save(step, {"global_steps": step}, fill, metrics={"val": value})
    assert store.best_step() == 2
    store.retain()
    assert sorted(store.steps()) == [2, 4]


def test_a_way_that_was_left_is_remembered_until_it_is_set_aside(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    assert store.left_way() is None
    store.leave_way(after=4)
    store.clean()
    assert CheckpointStore(store.folder).left_way() == 4 and store.steps() == {}
    (store.folder / ".left_way").write_text("")
    assert store.left_way() == -1, "a note that cannot be read fetches nothing"
    store.forget_left_way()
    assert store.left_way() is None
