"""Weights in shared memory: a complete set, each tensor under all its names, readable by path, gone when closed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import torch
from toy_engine import TinyModule

from podium.engines.rollout.buckets import Bucket
from podium.engines.rollout.shared_weights import Outline, SharedWeights


def read(shared: SharedWeights) -> dict[str, torch.Tensor]:
    found = {}
    for file in shared.files:
        data = torch.from_file(file.path, shared=False, size=file.num_bytes, dtype=torch.uint8)
        found |= {name: tensor.clone() for name, tensor in Bucket(file.entries, data).tensors()}
    return found


def open_files() -> list[str]:
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return links


def test_another_process_reads_what_was_written() -> None:
    weights = {"a": torch.randn(5, 3), "b": torch.arange(7, dtype=torch.bfloat16)}
    shared = SharedWeights.write(weights.items(), version=4)
    found = read(shared)
    assert shared.version == 4 and found.keys() == weights.keys()
    assert all(found[name].equal(tensor) for name, tensor in weights.items())
    paths = [file.path for file in shared.files]
    assert shared.files
    shared.close()
    assert not any(Path(path).exists() for path in paths)
    if Path("/proc/self/fd").is_dir():
        assert not any("podium-weights" in link for link in open_files())


@pytest.mark.parametrize("given", ["first.weight", "tied.weight"])
def test_a_tied_tensor_goes_out_under_all_its_names(given: str) -> None:
    module = TinyModule()
    weights = [(name, t) for name, t in module.state_dict().items() if name == given or name.startswith("second")]
    streamed = dict(Outline.of(module).checked(weights))
    assert streamed.keys() == module.state_dict().keys()
    assert streamed["first.weight"] is streamed["tied.weight"]
