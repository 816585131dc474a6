"""The Hugging Face folders of a checkpoint, gathered by ranks that train on meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rank_jobs import run_ranks, save_model_files, write_in_a_forward_pass
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from podium.engines.train.whole import Gatherer
from podium.models.lora import PEFT_PREFIX


@pytest.mark.parametrize(
    ("num_ranks", "adapted", "fsdp_size"),
    [(2, False, -1), (3, False, -1), (2, True, -1), (4, False, 2)],
    ids=["two", "three: uneven pieces", "two, LoRA", "two replicas of two pieces"],
)
def test_ranks_write_the_whole_model_of_the_moment_of_the_save(
    tmp_path: Path, num_ranks: int, adapted: bool, fsdp_size: int
) -> None:
    results = run_ranks(save_model_files, num_ranks, tmp_path / "ranks", tmp_path, adapted, fsdp_size, False)
    expected, wrong = results[0]  # type: ignore[misc]
    assert [result[1] for result in results] == [""] * num_ranks, wrong  # type: ignore[index]
    written: dict[str, Tensor] = load_file(tmp_path / "hf" / "model.safetensors")
    if adapted:
        written |= load_file(tmp_path / "hf_adapter" / "adapter_model.safetensors")
        assert any(name.startswith(PEFT_PREFIX) for name in written)
    assert written.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(written[name], tensor.float(), atol=1e-6, rtol=0, msg=name)


def test_an_adapter_is_written_while_a_forward_pass_swaps_the_parameters_of_its_blocks(tmp_path: Path) -> None:
    results = run_ranks(write_in_a_forward_pass, 2, tmp_path / "ranks", tmp_path)
    written, expected = load_file(tmp_path / "hf_adapter" / "adapter_model.safetensors"), results[0]
    assert isinstance(expected, dict) and written.keys() == expected.keys() and len(written) > 4
    assert all(torch.equal(written[name], tensor) for name, tensor in expected.items())


def test_a_disk_that_is_full_for_the_first_rank_fails_the_save_on_all(tmp_path: Path) -> None:
    results = run_ranks(save_model_files, 2, tmp_path / "ranks", tmp_path, False, -1, True)
    first, second = (result[1] for result in results)  # type: ignore[index]
    assert "too large" in first and second == "CheckpointError: another rank could not write the model's files"


def test_a_lone_process_has_the_whole_already() -> None:
    tensor = torch.arange(6.0)
    assert not isinstance(tensor, DTensor) and Gatherer(None)(tensor) is tensor
