"""What a save in the background writes is the state of the moment it was asked for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from podium.config.schema import OptimConfig
from podium.engines.train.state import create_optimizer_state
from podium.engines.train.torch import TorchEngine
from podium.models.load import load_tokenizer
from podium.workers.model_files import ModelFiles
from podium.workers.saving import CheckpointWriter

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SHAPE = Qwen2Config(
    hidden_size=64,
    num_hidden_layers=2,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=8192,  # a tensor large enough to be pinned on a GPU
)


def make_engine(device: str) -> TorchEngine:
    engine = TorchEngine(Qwen2ForCausalLM(SHAPE).to(device), optim=OptimConfig(), total_steps=10)
    assert engine.optimizer is not None
    create_optimizer_state(engine.optimizer)
    return engine


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_GPU])])
def test_a_change_after_settle_does_not_reach_the_files(tmp_path: Path, device: str) -> None:
    engine, writer, copy = make_engine(device), CheckpointWriter(), make_engine(device)
    tokenizer = load_tokenizer("builtin:tiny", False)
    for number in range(3):  # later saves use the buffers again
        with torch.no_grad():
            for parameter in engine.module.parameters():
                parameter.add_(torch.randn_like(parameter))
        expected = {name: tensor.detach().clone() for name, tensor in engine.state_tensors().items()}
        folder = tmp_path / str(number)
        writer.save(engine, folder / "state", True, ModelFiles.of(engine, tokenizer, folder))
        writer.settle()
        with torch.no_grad():
            for tensor in engine.state_tensors().values():
                tensor.zero_()
        deadline = time.monotonic() + 600
        while not writer.written():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        copy.load(folder / "state")
        loaded = copy.state_tensors()
        assert loaded.keys() == expected.keys()
        for name, tensor in loaded.items():
            assert torch.equal(tensor.cpu(), expected[name].cpu()), name
        exported = load_file(folder / "hf" / "model.safetensors")
        assert len(exported) > 20
        for name, tensor in exported.items():
            assert torch.equal(tensor, expected[f"model.{name}"].cpu()), name
