"""vLLM and SGLang keep the contract of the native engine: same tokens, same log-probs, same ends, same weights."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from podium.config.schema import RolloutConfig
from podium.engines.rollout.base import Completion, SamplingParams, StopReason
from podium.engines.rollout.hosted import HostedEngine
from podium.engines.rollout.native.engine import NativeEngine
from podium.engines.sync import make_probe, publish
from podium.engines.train.torch import TorchEngine
from podium.errors import PublishError, RolloutError

SMALL = RolloutConfig(max_num_seqs=32, kv_cache_gb=0.05)
PlainLogProbs = Callable[[PreTrainedModel, list[int], list[int]], Tensor]
Prompts = list[list[int]]


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> Prompts:
    chats = ([{"role": "user", "content": f"{a}+{b}="}] for a, b in ((12, 15), (7, 88), (60, 41), (3, 4)))
    return [list(tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=False)) for c in chats]


def change(model: PreTrainedModel, seed: int, size: float = 0.02) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=size)


def tokens(groups: list[list[Completion]]) -> list[list[list[int]]]:
    return [[completion.token_ids for completion in group] for group in groups]


def test_greedy_responses_are_the_native_engines(
    engine: HostedEngine, policy: PreTrainedModel, prompts: Prompts
) -> None:
    native = NativeEngine(policy, SMALL)
    params = SamplingParams(max_tokens=16, temperature=0.0)
    ours, theirs = native.generate(prompts, params), engine.generate(prompts, params)
    assert tokens(theirs) == tokens(ours)
    for (mine,), (other,) in zip(ours, theirs, strict=True):
        assert other.stop_reason is mine.stop_reason is StopReason.EOS
        assert other.raw_log_probs == pytest.approx(mine.raw_log_probs, abs=1e-4)
        assert other.log_probs == [0.0] * len(other.token_ids)


def test_sampled_log_probs_are_the_models(
    engine: HostedEngine, policy: PreTrainedModel, prompts: Prompts, plain_log_probs: PlainLogProbs
) -> None:
    groups = engine.generate(prompts, SamplingParams(max_tokens=24, ignore_eos=True), n=4)
    for prompt, group in zip(prompts, groups, strict=True):
        assert len({tuple(completion.token_ids) for completion in group}) > 1
        for one in group:
            assert len(one.token_ids) == 24 and one.stop_reason is StopReason.LENGTH
            assert torch.tensor(one.log_probs).allclose(plain_log_probs(policy, prompt, one.token_ids), atol=1e-4)
            assert one.raw_log_probs == one.log_probs


def test_log_probs_are_those_of_the_tempered_distribution(
    engine: HostedEngine, policy: PreTrainedModel, prompts: Prompts
) -> None:
    ((one,),) = engine.generate(prompts[:1], SamplingParams(max_tokens=12, temperature=0.7, ignore_eos=True))
    with torch.no_grad():
        policy.set_attn_implementation("eager")
        logits = policy(input_ids=torch.tensor([prompts[0] + one.token_ids]), use_cache=False).logits[0].float() / 0.7
    rows = logits.log_softmax(-1)[len(prompts[0]) - 1 : -1].gather(1, torch.tensor(one.token_ids)[:, None])
    assert torch.tensor(one.log_probs).allclose(rows.squeeze(1), atol=1e-4)
    assert all(math.isnan(value) for value in one.raw_log_probs), "they give one of the two"


def test_responses_end_where_the_native_engine_ends_them(
    engine: HostedEngine, policy: PreTrainedModel, prompts: Prompts, tokenizer: Any
) -> None:
    native = NativeEngine(policy, SMALL, tokenizer)
    digit = tokenizer.encode("2")[0]
    for params in (
        SamplingParams(max_tokens=16, temperature=0.0, stop=("7",)),
        SamplingParams(max_tokens=16, temperature=0.0, stop=("27", "95")),
        SamplingParams(max_tokens=16, temperature=0.0, stop_token_ids=(digit,)),
        SamplingParams(max_tokens=16, temperature=0.0, stop_token_ids=(digit,), ignore_eos=True),
        SamplingParams(max_tokens=2, temperature=0.0),
    ):
        ours, theirs = native.generate(prompts, params), engine.generate(prompts, params)
        assert tokens(theirs) == tokens(ours), params
        assert [[c.stop_reason for c in group] for group in theirs] == [[c.stop_reason for c in g] for g in ours]


def test_a_sample_depends_on_its_seed_alone(engine: HostedEngine, engine_name: str, prompts: Prompts) -> None:
    if engine_name == "sglang":
        pytest.skip("SGLang takes seeds only with kernels that a CPU does not have")
    params = SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.5)
    together = tokens(engine.generate(prompts, params, n=2, seeds=[1, 2, 3, 4]))
    alone = [tokens(engine.generate([prompt], params, n=2, seeds=[seed]))[0] for seed, prompt in enumerate(prompts, 1)]
    assert together == alone
    assert together != tokens(engine.generate(prompts, params, n=2, seeds=[5, 6, 7, 8]))


def test_after_a_publish_the_engines_log_probs_are_the_trainers(
    engine: HostedEngine, trainer: TorchEngine, prompts: Prompts, plain_log_probs: PlainLogProbs
) -> None:
    assert isinstance(trainer.module, PreTrainedModel)
    for step in range(2):
        change(trainer.module, seed=step)
        version = engine.version + 1
        done = publish(trainer, engine, version, probe=make_probe(trainer))
        assert done.mode == "gathered" and done.probe_difference is not None and done.probe_difference < 1e-4
        for prompt, (one,) in zip(prompts, engine.generate(prompts, SamplingParams(max_tokens=16)), strict=True):
            expected = plain_log_probs(trainer.module, prompt, one.token_ids)
            assert one.version == version and torch.tensor(one.log_probs).allclose(expected, atol=1e-4)


def without(name: str, weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    return ((key, tensor) for key, tensor in weights if key != name)


def test_a_partial_publish_is_caught(engine: HostedEngine, trainer: TorchEngine) -> None:
    whole, name = trainer.weights, "model.layers.1.mlp.up_proj.weight"
    trainer.weights = lambda dtype=None: without(name, whole(dtype))  # type: ignore[method-assign]
    with pytest.raises(PublishError, match=f"Tensor {name} was not published"):
        publish(trainer, engine, 90, probe=make_probe(trainer))
    with pytest.raises(RolloutError, match="loading version 90 did not finish"):
        engine.generate([[5]], SamplingParams(max_tokens=1))
    del trainer.weights  # type: ignore[method-assign]
    assert publish(trainer, engine, 91, probe=make_probe(trainer)).version == 91


def test_a_publish_that_the_engine_skips_is_caught(
    engine: HostedEngine, trainer: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(trainer.module, PreTrainedModel)
    publish(trainer, engine, 92, probe=make_probe(trainer))
    change(trainer.module, seed=9, size=1e-5)  # far below what the probe's tolerance sees
    real = engine._call

    def lying(method: str, *arguments: Any) -> Any:
        """The engine answers as if it had taken the weights, and takes none."""
        if method == "load":
            held = dict(trainer.module.state_dict())
            from podium.engines.rollout.remote import digest
            from podium.engines.rollout.weights import sample_values

            return [{name: digest(sample_values(tensor, arguments[1])) for name, tensor in held.items()}]
        return real(method, *arguments)

    monkeypatch.setattr(engine, "_call", lying)
    with pytest.raises(PublishError, match="took them and does not use them"):
        publish(trainer, engine, 93, probe=make_probe(trainer))
    monkeypatch.undo()
    publish(trainer, engine, 94, probe=make_probe(trainer))


def test_a_request_is_paused_for_new_weights_and_goes_on_with_them(
    engine: HostedEngine, policy: PreTrainedModel, prompts: Prompts, plain_log_probs: PlainLogProbs
) -> None:
    first, length = engine.version, 1000
    params = SamplingParams(max_tokens=length, ignore_eos=True)

    async def partial_rollout() -> tuple[Completion, int]:
        request = engine.submit(prompts[0], params, seed=3)
        other = asyncio.ensure_future(_wait(engine.submit(prompts[1], params)))
        waiting = asyncio.ensure_future(_wait(request))
        await engine.submit(prompts[2], SamplingParams(max_tokens=2))  # behind them: when it is done they have begun
        await asyncio.to_thread(engine.pause)
        change(policy, seed=1)
        await asyncio.to_thread(engine.load_weights, list(policy.state_dict().items()), first + 1)
        assert not request.done, "too fast for this test: ask for more tokens"
        other.cancel()
        await asyncio.to_thread(engine.resume)
        return await waiting, request.seed

    done, _ = asyncio.run(asyncio.wait_for(partial_rollout(), 600))
    assert len(done.token_ids) == length and done.version == first
    expected = plain_log_probs(policy, prompts[0], done.token_ids)
    assert torch.tensor(done.log_probs)[-20:].allclose(expected[-20:], atol=1e-3), "the end is by the new weights"


async def _wait(request: Any) -> Completion:
    completion: Completion = await request
    return completion


def test_an_aborted_request_keeps_what_it_wrote(engine: HostedEngine, prompts: Prompts) -> None:
    async def abort_within() -> Completion:
        request = engine.submit(prompts[0], SamplingParams(max_tokens=1500, ignore_eos=True))
        waiting = asyncio.ensure_future(_wait(request))
        await engine.submit(prompts[1], SamplingParams(max_tokens=2))  # behind it: when it is done the other has begun
        engine.abort(request)
        return await waiting

    done = asyncio.run(asyncio.wait_for(abort_within(), 600))
    assert done.stop_reason is StopReason.ABORTED and 0 < len(done.token_ids) < 1500
    assert len(done.log_probs) == len(done.token_ids)


def test_an_engine_that_is_killed_is_replaced_with_weights_and_requests(
    engine: HostedEngine, policy: PreTrainedModel, prompts: Prompts, plain_log_probs: PlainLogProbs
) -> None:
    change(policy, seed=4)
    engine.load_weights(policy.state_dict().items(), engine.version + 1)
    before, pid = engine.probe(), engine.host.pid
    os.killpg(pid, signal.SIGSTOP)  # nothing is finished before the end comes
    threading.Timer(0.5, os.killpg, [pid, signal.SIGKILL]).start()
    groups = engine.generate(prompts, SamplingParams(max_tokens=300, ignore_eos=True), n=2)
    assert engine.restarts == 1 and engine.host.pid != pid
    assert engine.probe().allclose(before, atol=1e-4)
    for prompt, group in zip(prompts, groups, strict=True):
        for one in group:
            assert one.version == engine.version
            assert torch.tensor(one.log_probs).allclose(plain_log_probs(policy, prompt, one.token_ids), atol=2e-4)


def test_an_argument_it_does_not_have_is_named(start_engine: Callable[..., HostedEngine]) -> None:
    with pytest.raises(RolloutError, match=r"engine_kwargs.quantizaton is not an argument .* did you mean"):
        start_engine(engine_kwargs={"quantizaton": "fp8"})


def test_two_workers_share_one_model(
    start_engine: Callable[..., HostedEngine],
    engine_name: str,
    policy: PreTrainedModel,
    prompts: Prompts,
    plain_log_probs: PlainLogProbs,
) -> None:
    if engine_name == "sglang":
        pytest.skip("SGLang's tensor parallelism on a CPU needs its compiled kernels")
    engine = start_engine(tensor_model_parallel_size=2)
    change(policy, seed=2)
    engine.load_weights(policy.state_dict().items(), 1)
    for prompt, (one,) in zip(prompts, engine.generate(prompts, SamplingParams(max_tokens=16)), strict=True):
        assert torch.tensor(one.log_probs).allclose(plain_log_probs(policy, prompt, one.token_ids), atol=1e-4)
    engine.close()
