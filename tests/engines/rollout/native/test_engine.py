from __future__ import annotations

import copy
import gc
import resource
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from podium.config.schema import RolloutConfig
from podium.engines.rollout.base import Completion, SamplingParams, StopReason
from podium.engines.rollout.native import engine as engine_module
from podium.engines.rollout.native import runner
from podium.engines.rollout.native.body import layer_size
from podium.engines.rollout.native.engine import NativeEngine
from podium.engines.rollout.native.kv import KVShape, PagedKV
from podium.engines.rollout.native.runner import Runner
from podium.errors import ConfigError, RolloutError

EOS = 1
GREEDY_PROMPTS = 200
"""Prompts per model family that are compared with transformers."""


def small(**overrides: Any) -> RolloutConfig:
    options = {"max_num_seqs": 16, "max_num_batched_tokens": 64, "block_size": 4, "kv_cache_gb": 0.01}
    return RolloutConfig(**(options | overrides))


def engine_with_blocks(model: PreTrainedModel, num_blocks: int, **overrides: Any) -> NativeEngine:
    """An engine with exactly this many pages."""
    page = 4 * KVShape.of(model.config, torch.float32).bytes_per_token()
    return NativeEngine(model, small(kv_cache_gb=num_blocks * page / (1 << 30), **overrides))


def tokens_of(completions: list[list[Completion]]) -> list[list[list[int]]]:
    return [[completion.token_ids for completion in group] for group in completions]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma", "gemma3", "phi", "phi3", "granite"])
def test_greedy_output_is_that_of_transformers(
    family: str, make_lm: Any, random_prompts: Any, transformers_greedy: Any
) -> None:
    prompts = random_prompts(GREEDY_PROMPTS, longest=50)
    reference = transformers_greedy(make_lm(family), prompts, 16)
    engine = NativeEngine(make_lm(family), small())
    completions = engine.generate(prompts, SamplingParams(max_tokens=16, temperature=0.0))
    assert [group[0] for group in tokens_of(completions)] == reference
    for group in completions:
        ended = group[0].stop_reason is StopReason.EOS
        assert ended == (group[0].token_ids[-1] == EOS)
        assert ended or len(group[0].token_ids) == 16


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_a_plain_forward_pass(
    family: str, temperature: float, make_lm: Any, random_prompts: Any, plain_log_probs: Any
) -> None:
    model = make_lm(family)
    prompts = random_prompts(12, longest=30, seed=3)
    engine = NativeEngine(model, small())
    groups = engine.generate(prompts, SamplingParams(max_tokens=12, temperature=temperature), n=3)
    for prompt, group in zip(prompts, groups, strict=True):
        for completion in group:
            expected = plain_log_probs(model, prompt, completion.token_ids)
            torch.testing.assert_close(torch.tensor(completion.raw_log_probs), expected, atol=1e-4, rtol=0)
            if temperature == 1.0:
                assert completion.log_probs == completion.raw_log_probs
            else:
                assert completion.log_probs != completion.raw_log_probs


def test_samples_of_a_prompt_differ_from_each_other_and_repeat_with_their_seed(make_lm: Any) -> None:
    engine = NativeEngine(make_lm(), small())
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    first = engine.generate([[5, 6, 7]], params, n=8, seeds=[2**64 - 3])
    again = engine.generate([[5, 6, 7]], params, n=8, seeds=[2**64 - 3])
    other = engine.generate([[5, 6, 7]], params, n=8, seeds=[4])
    assert len({tuple(tokens) for tokens in tokens_of(first)[0]}) == 8
    assert tokens_of(first) == tokens_of(again) != tokens_of(other)


def test_a_sample_does_not_depend_on_the_batch_it_is_in(make_lm: Any, random_prompts: Any) -> None:
    model = make_lm()
    params = SamplingParams(max_tokens=12)
    prompts = random_prompts(24, longest=40, seed=5)
    seeds = [1000 + i for i in range(24)]
    together = NativeEngine(model, small()).generate(prompts, params, n=2, seeds=seeds)
    lone = NativeEngine(model, small(max_num_seqs=1, max_num_batched_tokens=7))
    for i in (0, 7, 23):
        alone = lone.generate([prompts[i]], params, n=2, seeds=[seeds[i]])[0]
        assert [c.token_ids for c in alone] == [c.token_ids for c in together[i]]
        for ours, theirs in zip(alone, together[i], strict=True):
            torch.testing.assert_close(torch.tensor(ours.log_probs), torch.tensor(theirs.log_probs), atol=1e-5, rtol=0)


def test_n_samples_take_little_more_memory_than_one(make_lm: Any) -> None:
    engine = NativeEngine(make_lm(), small())
    engine.submit_group(list(range(2, 42)), SamplingParams(max_tokens=4, ignore_eos=True), n=8)
    engine.step()
    engine.step()
    pool = engine.scheduler.tables.pool
    assert pool.num_blocks - pool.num_free == 10 + 8, "ten pages of prompt once, and one page per sample"


def test_preemption_does_not_change_the_samples(make_lm: Any, random_prompts: Any) -> None:
    model = make_lm()
    prompts = random_prompts(10, longest=20, seed=7)
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    roomy = NativeEngine(model, small())
    tight = engine_with_blocks(model, num_blocks=20)
    expected = roomy.generate(prompts, params, n=2)
    actual = tight.generate(prompts, params, n=2)
    assert tight.scheduler.num_preempted > 0 and roomy.scheduler.num_preempted == 0
    assert tokens_of(actual) == tokens_of(expected)
    assert tight.scheduler.tables.pool.num_free == 20


def test_no_prompts_give_no_completions(make_lm: Any) -> None:
    assert NativeEngine(make_lm(), small()).generate([], SamplingParams(max_tokens=4)) == []


def test_one_token_in_and_one_token_out(make_lm: Any) -> None:
    engine = NativeEngine(make_lm(), small())
    groups = engine.generate([[3], [4]], SamplingParams(max_tokens=1, temperature=0.0), n=2)
    assert [[len(c.token_ids) for c in group] for group in groups] == [[1, 1], [1, 1]]


def test_a_stop_token_ends_a_response_and_belongs_to_it(make_lm: Any) -> None:
    engine = NativeEngine(make_lm(), small())
    free = engine.generate([[9, 8, 7]], SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True))[0][0]
    stop = free.token_ids[6]
    first = free.token_ids.index(stop)
    params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, stop_token_ids=(stop,))
    stopped = engine.generate([[9, 8, 7]], params)[0][0]
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert stopped.stop_reason is StopReason.STOP and not stopped.stop_reason.is_truncated()


def test_a_stop_string_ends_a_response_at_the_token_that_completes_it(
    make_lm: Any, text_tokenizer: PreTrainedTokenizerFast, random_prompts: Any
) -> None:
    engine = NativeEngine(make_lm(), small(), tokenizer=text_tokenizer)
    prompts = random_prompts(6, longest=10)
    base = SamplingParams(max_tokens=24, ignore_eos=True)
    for prompt, group in zip(prompts, engine.generate(prompts, base, seeds=[3] * 6), strict=True):
        tokens = group[0].token_ids
        text = text_tokenizer.decode(tokens)
        stop = text[8:12]
        expected = next(i for i in range(len(tokens) + 1) if stop in text_tokenizer.decode(tokens[:i]))
        params = SamplingParams(max_tokens=24, ignore_eos=True, stop=("never in there", stop))
        stopped = engine.generate([prompt], params, seeds=[3])[0][0]
        assert stopped.token_ids == tokens[:expected]
        assert stopped.stop_reason is StopReason.STOP


def test_ignoring_eos_writes_on_to_the_limit(make_lm: Any, random_prompts: Any) -> None:
    engine = NativeEngine(make_lm(), small())
    prompts = random_prompts(30, longest=10)
    plain = engine.generate(prompts, SamplingParams(max_tokens=40))
    assert any(group[0].stop_reason is StopReason.EOS for group in plain)
    on = engine.generate(prompts, SamplingParams(max_tokens=40, ignore_eos=True))
    assert all(len(group[0].token_ids) == 40 for group in on)
    for short, long in zip(plain, on, strict=True):
        assert long[0].token_ids[: len(short[0].token_ids)] == short[0].token_ids


def test_an_aborted_request_keeps_what_it_wrote(make_lm: Any) -> None:
    engine = NativeEngine(make_lm(), small())
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    kept, aborted, waiting = (engine.submit([5, 6], params, seed=i) for i in range(3))
    for _ in range(4):
        engine.step()
    engine.abort(aborted)
    assert engine.step() == [aborted]
    assert len(aborted.result().token_ids) == 4 and aborted.result().stop_reason is StopReason.ABORTED
    while not (kept.done and waiting.done):
        engine.step()
    assert kept.result().token_ids == engine.generate([[5, 6]], params, seeds=[0])[0][0].token_ids
    assert engine.scheduler.tables.pool.num_free == engine.scheduler.tables.pool.num_blocks


def test_a_paused_engine_makes_no_token_and_goes_on_when_resumed(make_lm: Any) -> None:
    engine = NativeEngine(make_lm(), small())
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    request = engine.submit([5, 6], params, seed=9)
    engine.step()
    engine.pause()
    assert [engine.step() for _ in range(10)] == [[]] * 10
    with pytest.raises(RolloutError, match="resume"):
        engine.generate([[5, 6]], params)
    engine.resume()
    while not request.done:
        engine.step()
    assert request.result().token_ids == engine.generate([[5, 6]], params, seeds=[9])[0][0].token_ids


def test_the_trainers_own_module_is_run_and_left_as_it_was(make_lm: Any) -> None:
    model = make_lm()
    engine = NativeEngine(model, small())
    model.train()
    model.model.layers[0].eval()
    flags = [part.training for part in model.modules()]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    engine.generate([[2, 3, 4]], SamplingParams(max_tokens=5), n=4)
    engine.probe()
    assert engine.module is model
    assert [part.training for part in model.modules()] == flags
    assert all(p.equal(before[name]) and p.grad is None for name, p in model.named_parameters())

    head = model.get_output_embeddings().weight
    head.square().sum().backward()
    assert head.grad is not None and not any(p.is_inference() for p in model.parameters())
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_new_weights_are_used_at_once_and_named_in_what_they_write(make_lm: Any, plain_log_probs: Any) -> None:
    model = make_lm(seed=0)
    engine = NativeEngine(model, small())
    request = engine.submit([2, 3, 4, 5, 6], SamplingParams(max_tokens=8, ignore_eos=True))
    for _ in range(3):
        engine.step()
    engine.load_weights(make_lm(seed=1).state_dict().items(), version=7)
    pool = engine.scheduler.tables.pool
    assert engine.version == 7 and pool.num_free == pool.num_blocks, "no KV of the old weights is left"
    while not request.done:
        engine.step()
    mixed = request.result()
    assert mixed.version == 0, "the oldest weights that wrote any of it"
    expected = plain_log_probs(make_lm(seed=1), [2, 3, 4, 5, 6], mixed.token_ids)
    torch.testing.assert_close(torch.tensor(mixed.raw_log_probs[3:]), expected[3:], atol=1e-4, rtol=0)
    assert engine.generate([[2]], SamplingParams(max_tokens=1))[0][0].version == 7


def test_small_passes_compute_in_one_thread_and_large_ones_in_all(
    make_lm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_lm()
    engine = NativeEngine(model, small())
    threads: list[tuple[int, int]] = []
    hidden = engine.runner.model.hidden

    def seen(ids: Tensor, *rest: Any) -> Tensor:
        threads.append((len(ids), torch.get_num_threads()))
        return hidden(ids, *rest)

    monkeypatch.setattr(engine.runner.model, "hidden", seen)
    monkeypatch.setattr(runner, "THREAD_WORK", int(4 * layer_size(model)))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        engine.generate([list(range(2, 22)), [3, 4, 5]], SamplingParams(max_tokens=3, ignore_eos=True), n=2)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert threads == [(23, 3), (4, 1), (4, 1)]


def test_sleep_and_wake_do_not_grow_and_do_not_change_samples(make_lm: Any) -> None:
    engine = NativeEngine(make_lm(), small())
    params = SamplingParams(max_tokens=3)
    expected = engine.generate([[2, 3]], params)
    with pytest.raises(RolloutError, match=r"wake\(\)"):
        engine.sleep()
        engine.generate([[2, 3]], params)

    def cycles(count: int) -> int:
        for i in range(count):
            engine.sleep()
            assert engine.cache is None
            engine.wake()
            assert i % 5 or engine.generate([[2, 3]], params) == expected
        gc.collect()
        return sum(1 for o in gc.get_objects() if type(o) is torch.Tensor)

    cycles(5)
    tensors, peak = cycles(5), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert cycles(95) <= tensors
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 20_000, "kilobytes"


def test_a_request_under_way_survives_a_nap(make_lm: Any) -> None:
    engine = NativeEngine(make_lm(), small())
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    request = engine.submit([5, 6], params, seed=2)
    engine.step()
    engine.sleep()
    engine.wake()
    while not request.done:
        engine.step()
    assert request.result().token_ids == engine.generate([[5, 6]], params, seeds=[2])[0][0].token_ids


def test_a_cache_that_holds_nan_is_gone_before_the_next_is_made(make_lm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device one fills the memory it may have."""
    model = make_lm()
    engine = NativeEngine(model, small())
    assert engine.cache is not None
    old, alive = weakref.ref(engine.cache), []

    def make(*args: Any) -> PagedKV:
        alive.append(old() is not None)
        return PagedKV(*args)

    monkeypatch.setattr(engine_module, "PagedKV", make)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.fill_(float("nan"))
    with pytest.raises(RolloutError, match="non-finite"):
        engine.generate([[5, 6]], SamplingParams(max_tokens=12))
    assert alive == [False] and engine.cache is not None


def test_weights_that_give_nan_stop_the_run_and_poison_nothing(make_lm: Any) -> None:
    model = make_lm()
    engine = NativeEngine(model, small())
    good = engine.generate([[5, 6]], SamplingParams(max_tokens=4))
    weight = model.model.layers[0].mlp.up_proj.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    with pytest.raises(RolloutError, match="non-finite"):
        engine.generate([[5, 6]], SamplingParams(max_tokens=4), n=3)
    with torch.no_grad():
        weight.copy_(kept)
    assert engine.generate([[5, 6]], SamplingParams(max_tokens=4)) == good


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, "at least one token"),
        ([96], {}, "Token 96 .* vocabulary of 96"),
        ([-1], {}, "Token -1"),
        ([2] * 250, {"max_tokens": 10}, "makes 260; the model knows 256"),
        ([2], {"stop_token_ids": (100,)}, "Stop token 100"),
        ([2], {"stop": ("x",)}, "need a tokenizer"),
    ],
)
def test_requests_that_cannot_run_are_refused(
    prompt: list[int], params: dict[str, Any], message: str, make_lm: Any
) -> None:
    engine = NativeEngine(make_lm(), small())
    with pytest.raises(RolloutError, match=message):
        engine.generate([[2], prompt], SamplingParams(**({"max_tokens": 2} | params)))
    assert not engine._arrivals, "a refused call leaves nothing behind"


def test_a_cache_or_batch_too_small_is_refused_with_the_arithmetic(make_lm: Any) -> None:
    model = make_lm()
    tight = engine_with_blocks(model, num_blocks=4)
    with pytest.raises(RolloutError, match=r"needs 5 KV pages of 4 tokens; the cache has 4 \(16 tokens\)"):
        tight.generate([[2] * 10], SamplingParams(max_tokens=7))
    with pytest.raises(RolloutError, match=r"one page of 4 tokens takes 1024 \(256 bytes per token\)"):
        NativeEngine(model, small(kv_cache_gb=1e-7))
    with pytest.raises(ConfigError, match="max_num_seqs=65"):
        NativeEngine(model, small(max_num_seqs=65))


def test_a_wide_vocabulary_is_sampled_in_parts(make_lm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = NativeEngine(make_lm(), small())
    params = SamplingParams(max_tokens=6)
    whole = engine.generate([[2, 3], [4]], params, n=3)
    monkeypatch.setattr("podium.engines.rollout.native.runner.HEAD_VALUES", 200)
    assert tokens_of(engine.generate([[2, 3], [4]], params, n=3)) == tokens_of(whole)


@pytest.mark.parametrize("cast", ["module", "autocast"])
def test_bfloat16_stays_near_float32(cast: str, make_lm: Any, random_prompts: Any, plain_log_probs: Any) -> None:
    """Prompts whole and in chunks, decoding, and the head, in half precision."""
    model = make_lm(num_hidden_layers=1)
    exact = copy.deepcopy(model)
    half = model.to(torch.bfloat16) if cast == "module" else model
    engine = NativeEngine(half, small(max_num_batched_tokens=32), dtype=torch.bfloat16)
    assert engine.cache is not None and engine.cache.layers[0].dtype == torch.bfloat16
    prompts = random_prompts(6, longest=50, seed=2)
    differences = [
        (torch.tensor(completion.raw_log_probs) - plain_log_probs(exact, prompt, completion.token_ids)).abs()
        for prompt, group in zip(prompts, engine.generate(prompts, SamplingParams(max_tokens=8), n=2), strict=True)
        for completion in group
    ]
    assert torch.cat(differences).mean() < 0.1


def test_without_triton_a_gpu_is_served_by_the_plain_runner_and_one_line_says_so(
    make_lm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = NativeEngine(make_lm(), small())
    engine.device = torch.device("cuda")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    runner = engine._make_runner(small(), torch.float32, num_blocks=8)
    assert type(runner) is Runner and runner.window == 1
    assert [record.message for record in caplog.records if "Triton is not installed" in record.message] == [
        "Triton is not installed: rollouts decode without CUDA graphs, several times slower."
    ]
