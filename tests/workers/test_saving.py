"""What a save in the background writes is the state of the moment it was asked for."""

from __future__ import annotations

import mmap
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from podium.config.schema import OptimConfig
from podium.engines.train.state import create_optimizer_state
from podium.engines.train.torch import TorchEngine
from podium.models.load import load_tokenizer
from podium.workers.model_files import ModelFiles
from podium.workers.saving import PIN_BYTES, CheckpointWriter

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


def test_what_was_copied_is_let_go_of_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that rests meanwhile frees its device; the writing may take minutes."""
    engine, writer = make_engine("cpu"), CheckpointWriter()
    held: list[weakref.ref[Any]] = []

    def put_elsewhere(tensor: torch.Tensor) -> None:
        array = tensor.detach().numpy().copy()
        tensor.data = torch.from_numpy(array)  # alive as long as anybody has this tensor
        held.append(weakref.ref(array))

    def move() -> None:
        assert engine.optimizer is not None
        for parameter in engine.module.parameters():
            put_elsewhere(parameter)
        for kept in engine.optimizer.state.values():
            kept.update({key: tensor.clone() for key, tensor in kept.items()})
            for tensor in kept.values():
                put_elsewhere(tensor)

    move()
    before, rested, alive = list(held), threading.Event(), []
    assert len(before) > 60

    def write(*_: object) -> None:
        assert rested.wait(600)
        alive.append(sum(ref() is not None for ref in before))

    monkeypatch.setattr(writer, "_write", write)
    model = ModelFiles.of(engine, load_tokenizer("builtin:tiny", False), tmp_path)
    writer.save(engine, tmp_path / "state", True, model)
    writer.settle()
    move()
    rested.set()
    while not writer.written():
        time.sleep(0.01)
    assert alive == [0]


class OnDevice(torch.Tensor):
    is_cuda = True


def test_buffers_that_are_locked_share_no_page(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A page is locked once; malloc puts buffers of a few megabytes side by side when it likes."""

    class Cudart:
        def __init__(self) -> None:
            self.pages: set[int] = set()

        def cudaHostRegister(self, start: int, size: int, flags: int) -> int:
            wanted = set(range(start // mmap.PAGESIZE, (start + size - 1) // mmap.PAGESIZE + 1))
            locked_before = bool(wanted & self.pages)
            self.pages |= wanted
            return 712 if locked_before else 0

        def cudaHostUnregister(self, start: int) -> None:
            pass

    cudart = Cudart()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    for megabytes in (30, 20, 10):  # from here on malloc takes smaller ones out of one heap
        torch.empty(megabytes << 20, dtype=torch.uint8)
    writer = CheckpointWriter()
    for number in range(20):
        tensor = torch.randn(PIN_BYTES // 4 + 1000, 1)
        buffer = writer._fill_buffer(str(number), tensor.as_subclass(OnDevice))
        assert buffer.equal(tensor) and writer._fill_buffer(str(number), tensor.as_subclass(OnDevice)) is buffer
    assert len(cudart.pages) >= 20 * PIN_BYTES // mmap.PAGESIZE and not caplog.records
    small = writer._fill_buffer("small", torch.ones(3).as_subclass(OnDevice))
    assert small.equal(torch.ones(3))


def test_a_buffer_that_cannot_be_locked_serves_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(cudaHostRegister=lambda *_: 2))
    writer, tensor = CheckpointWriter(), torch.randn(PIN_BYTES // 4 + 1000, 1)
    for name in ("a", "b"):
        assert writer._fill_buffer(name, tensor.as_subclass(OnDevice)).equal(tensor)
    assert [record.getMessage() for record in caplog.records] == [
        "host memory for checkpoints cannot be locked (CUDA error 2): saves take longer to copy"
    ]
