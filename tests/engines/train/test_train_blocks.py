"""Compiled blocks, activations on the host, prefetch and offload change speed and memory, never the numbers."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor
from train_cases import make_batch, make_model, policy_loss, tokens

from podium.config.schema import FSDPConfig, OptimConfig
from podium.engines.train import placement
from podium.engines.train.blocks import compile_blocks
from podium.engines.train.torch import TorchEngine

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def result(device: str = "cpu", checkpointing: bool = False, **fsdp: bool) -> tuple[Tensor, float, dict[str, Tensor]]:
    """Log-probs, gradient norm and weights after two updates, the engine resting in between."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    engine = TorchEngine(
        make_model("qwen2", gradient_checkpointing=checkpointing).to(device),  # type: ignore[arg-type]
        optim=OptimConfig(lr=1e-3),
        fsdp=FSDPConfig(**fsdp),  # type: ignore[arg-type]
        dtype=dtype,
        device=device,
        max_tokens_per_micro_batch=60,
    )
    batch = make_batch(8)
    for _ in range(2):
        norm = engine.update(batch, policy_loss, tokens(batch))["grad_norm"].result()
        engine.offload()
    scores = engine.log_probs(batch, temperature=1.0)["log_probs"]
    return scores, norm, {name: tensor.cpu() for name, tensor in engine.weights()}


def assert_same(ours: tuple[Tensor, float, dict[str, Tensor]], wanted: tuple[Tensor, float, dict[str, Tensor]]) -> None:
    half = wanted[0].is_cuda or torch.cuda.is_available()
    torch.testing.assert_close(ours[0], wanted[0], atol=0.3 if half else 1e-4, rtol=0)
    assert ours[1] == pytest.approx(wanted[1], rel=0.02 if half else 1e-4)
    for name, tensor in wanted[2].items():  # in half precision AdamW turns a tiny gradient's sign into a whole step
        torch.testing.assert_close(ours[2][name], tensor, atol=5e-3 if half else 1e-5, rtol=0)


@pytest.mark.slow
def test_compiled_blocks_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured and replayed, not turned into machine code: that part is torch's own and takes long."""
    monkeypatch.setattr(placement, "compile_blocks", functools.partial(compile_blocks, backend="eager"))
    torch._dynamo.utils.counters.clear()
    assert_same(result(use_torch_compile=True), result())
    seen = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert 0 < seen <= 12, "one set of programs for training and one for scoring, whatever the number of tokens"


def test_checkpointing_and_its_first_update_give_the_same_numbers() -> None:
    engine = TorchEngine(make_model("qwen2", gradient_checkpointing=True), optim=OptimConfig())
    assert not engine.root.training and not engine.module.training
    assert_same(result(checkpointing=True), result())


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    "form",
    [
        {"activation_offload": True},
        {"activation_offload": True, "checkpointing": True},
        {"param_offload": True, "optimizer_offload": True},
        {"use_torch_compile": True},
    ],
    ids=str,
)
def test_memory_savers_give_the_same_numbers_on_a_gpu(form: dict[str, bool]) -> None:
    assert_same(result("cuda", **form), result("cuda"))
