"""The chunked head gives the numbers and gradients of the plain formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from podium.engines.train.logprobs import HeadOutputs, chunked_log_probs
from podium.models.load import LogitTransform


def case(tokens: int = 23, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, 5, generator=g, dtype=dtype).requires_grad_()
    weight = torch.randn(11, 5, generator=g, dtype=dtype).requires_grad_()
    bias = torch.randn(11, generator=g, dtype=dtype).requires_grad_()
    labels = torch.randint(0, 11, (tokens,), generator=g)
    return hidden, weight, bias, labels


def naive(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, temperature: float, transform: LogitTransform
) -> HeadOutputs:
    logits = torch.nn.functional.linear(hidden, weight, bias) * transform.scale
    if transform.softcap is not None:
        logits = transform.softcap * torch.tanh(logits / transform.softcap)
    log_p = (logits / temperature).log_softmax(-1)
    p = log_p.exp()
    return HeadOutputs(log_p.gather(-1, labels[:, None]).squeeze(-1), -(p * log_p).sum(-1), p.square().sum(-1))


def all_outputs(outputs: HeadOutputs) -> Tensor:
    assert outputs.entropy is not None and outputs.sum_pi_squared is not None
    return torch.stack([outputs.log_probs, outputs.entropy, outputs.sum_pi_squared])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("transform", [LogitTransform(), LogitTransform(scale=0.5), LogitTransform(softcap=3.0)])
def test_values_and_gradients_equal_autograd_of_the_plain_formula(
    temperature: float, with_bias: bool, transform: LogitTransform
) -> None:
    hidden, weight, bias, labels = case()
    inputs = [hidden, weight, bias] if with_bias else [hidden, weight]
    wanted = all_outputs(naive(hidden, weight, bias if with_bias else None, labels, temperature, transform))
    ours = all_outputs(
        chunked_log_probs(
            hidden, weight, bias if with_bias else None, labels, temperature,
            chunk=7, with_entropy=True, with_sum_pi_squared=True, transform=transform,
        )
    )  # fmt: skip
    torch.testing.assert_close(ours, wanted)
    upstream = torch.randn(wanted.shape, dtype=wanted.dtype)
    torch.testing.assert_close(
        torch.autograd.grad(ours, inputs, upstream), torch.autograd.grad(wanted, inputs, upstream)
    )


def test_gradcheck_passes() -> None:
    hidden, weight, bias, labels = case(tokens=5)

    def run(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return all_outputs(
            chunked_log_probs(h, w, b, labels, 1.3, chunk=2, with_entropy=True, with_sum_pi_squared=True)
        )

    assert torch.autograd.gradcheck(run, (hidden, weight, bias))


@pytest.mark.parametrize("only", ["log_probs", "entropy", "sum_pi_squared"])
def test_an_output_the_loss_ignores_adds_nothing_to_the_gradient(only: str) -> None:
    hidden, weight, bias, labels = case()
    plain = getattr(naive(hidden, weight, bias, labels, 1.0, LogitTransform()), only).sum()
    ours = getattr(
        chunked_log_probs(hidden, weight, bias, labels, 1.0, with_entropy=True, with_sum_pi_squared=True), only
    ).sum()
    inputs = [hidden, weight, bias]
    torch.testing.assert_close(torch.autograd.grad(ours, inputs), torch.autograd.grad(plain, inputs))


def test_the_chunk_size_does_not_matter() -> None:
    hidden, weight, bias, labels = case(dtype=torch.float32)
    small = chunked_log_probs(hidden, weight, bias, labels, 1.0, chunk=1).log_probs
    torch.testing.assert_close(small, chunked_log_probs(hidden, weight, bias, labels, 1.0, chunk=100).log_probs)


def test_no_tokens_give_zero_gradients() -> None:
    hidden, weight, bias, labels = case(tokens=0)
    outputs = chunked_log_probs(hidden, weight, bias, labels, 1.0, with_entropy=True)
    outputs.log_probs.sum().backward()
    assert outputs.log_probs.shape == (0,)
    assert weight.grad is not None and not weight.grad.any()


def test_what_was_not_asked_for_is_none() -> None:
    outputs = chunked_log_probs(*case(), temperature=1.0)
    assert outputs.entropy is None and outputs.sum_pi_squared is None


def test_bfloat16_inputs_sum_in_float32() -> None:
    hidden, weight, bias, labels = case(tokens=300, dtype=torch.float32)
    half = [x.detach().bfloat16().requires_grad_() for x in (hidden, weight, bias)]
    whole = [x.detach().float().requires_grad_() for x in half]
    ours = chunked_log_probs(*half, labels, 1.0, chunk=16).log_probs
    plain = naive(*whole, labels, 1.0, LogitTransform()).log_probs
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, plain, atol=0.05, rtol=0.02)
    got, wanted = torch.autograd.grad(ours.sum(), half), torch.autograd.grad(plain.sum(), whole)
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == torch.bfloat16
        assert (a.float() - b).norm() < 0.02 * b.norm()


def test_logits_of_more_than_one_chunk_never_exist() -> None:
    tokens, vocab, chunk = 64, 50, 8
    hidden = torch.randn(tokens, 4, requires_grad=True)
    weight = torch.randn(vocab, 4, requires_grad=True)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                largest = max(largest, out.numel())
            return out

    with Watch():
        labels = torch.zeros(tokens, dtype=torch.long)
        chunked_log_probs(hidden, weight, None, labels, 1.0, chunk=chunk, with_entropy=True).log_probs.sum().backward()
    assert 0 < largest <= chunk * vocab


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_kernels_equal_the_plain_way(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    tokens, vocab = 300, 9001
    hidden, weight, bias = (
        torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_()
        for shape in ((tokens, 64), (vocab, 64), (vocab,))
    )
    labels = torch.randint(0, vocab, (tokens,), device="cuda")
    options = {"chunk": 128, "with_entropy": True, "with_sum_pi_squared": True, "transform": LogitTransform(scale=0.5)}
    results = []
    for fused in (True, False):
        monkeypatch.setattr("podium.engines.train.logprobs._has_triton", lambda on=fused: on)
        outputs = all_outputs(chunked_log_probs(hidden, weight, bias, labels, 0.7, **options))  # type: ignore[arg-type]
        upstream = torch.linspace(-1, 1, outputs.numel(), device="cuda").view_as(outputs)
        results.append((outputs, *torch.autograd.grad(outputs, [hidden, weight, bias], upstream)))
    for ours, wanted in zip(*results, strict=True):
        atol = 1e-4 if dtype == torch.float32 or ours is results[0][0] else 0.02 * float(wanted.abs().max())
        torch.testing.assert_close(ours, wanted, atol=atol, rtol=1e-3)
