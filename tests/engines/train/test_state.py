"""An engine's state on a disk that fails, is full, or is not shared: an error that says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from rank_jobs import run_ranks
from state_jobs import full, save_apart, save_with_one_full_disk

from podium.checkpoint.sharded import find_missing
from podium.engines.train.state import load_state, missing_files, save_state
from podium.errors import CheckpointError

TENSORS = {"model.w": torch.zeros(3)}


def test_a_write_that_fails_is_an_error_with_the_answer_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"actor could not be written: OSError: .*No space left on device"):
        save_state(tmp_path / "actor", TENSORS, distributed=False)


def test_a_file_that_is_missing_is_not_taken_for_another_model(tmp_path: Path) -> None:
    save_state(tmp_path / "actor", TENSORS, distributed=False)
    assert missing_files(tmp_path / "actor") == []
    (tmp_path / "actor" / "__0_0.distcp").unlink()
    assert missing_files(tmp_path / "actor") == ["__0_0.distcp"]
    with pytest.raises(CheckpointError, match=r"lacks 1 of its files on this machine, the first is '__0_0.distcp'"):
        load_state(tmp_path / "actor", TENSORS, distributed=False)


def test_a_tensor_of_another_shape_is_another_model(tmp_path: Path) -> None:
    save_state(tmp_path / "actor", TENSORS, distributed=False)
    with pytest.raises(CheckpointError, match="does not fit this model"):
        load_state(tmp_path / "actor", {"model.w": torch.zeros(4)}, distributed=False)


def test_a_full_disk_of_one_rank_is_named_by_all(tmp_path: Path) -> None:
    for said in run_ranks(save_with_one_full_disk, 2, tmp_path / "ranks", tmp_path / "actor"):
        assert "of rank 1 could not be written: OSError: [Errno 28] No space left on device" in str(said)


def test_what_other_nodes_kept_on_their_own_disk_is_missed(tmp_path: Path) -> None:
    run_ranks(save_apart, 2, tmp_path / "ranks", tmp_path)
    here = tmp_path / "node_0"
    assert find_missing(here, num_parts=1) == "actor/ lacks __1_0.distcp and 0 other files of its ranks"
    assert find_missing(tmp_path / "node_1", num_parts=1) == "0 of 1 models are here"
    (tmp_path / "node_1" / "actor" / "__1_0.distcp").rename(here / "actor" / "__1_0.distcp")
    assert find_missing(here, num_parts=1) is None
    assert find_missing(here, num_parts=2) == "1 of 2 models are here"
