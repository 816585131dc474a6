"""The whole engine with its state on the device: the same behaviour as on a CPU, by graphs that replay."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from podium.config.schema import RolloutConfig
from podium.engines.rollout.base import Completion, SamplingParams, StopReason
from podium.engines.rollout.native import engine as engine_module
from podium.engines.rollout.native.engine import NativeEngine
from podium.engines.rollout.native.gpu.graphs import Graphs
from podium.engines.rollout.native.gpu.rules import RuleTable
from podium.engines.rollout.native.gpu.runner import WINDOW, GraphRunner
from podium.engines.rollout.native.lean import LeanBody
from podium.engines.rollout.native.runner import BatchRunner
from podium.errors import RolloutError

GREEDY_PROMPTS = int(os.environ.get("PODIUM_GREEDY_PROMPTS", "20"))


class Eager:
    """Stands in for a graph where there is none to capture: Triton's interpreter."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step

    def replay(self, times: int) -> None:
        for _ in range(times):
            self.step()


class EagerGraphs(Graphs):
    def capture(self, key: Hashable, step: Callable[[], None]) -> Any:
        self._graphs[key] = Eager(step)  # type: ignore[assignment]
        return self._graphs[key]


class InterpretedEngine(NativeEngine):
    def _make_runner(self, config: RolloutConfig, dtype: torch.dtype, num_blocks: int) -> BatchRunner:
        longest = -(-(self.max_model_len or 1) // config.block_size)
        runner = GraphRunner(self.module, dtype, config.max_num_seqs, min(num_blocks, longest), self.rules)
        runner.graphs = EagerGraphs()
        return runner


def make_engine(model: PreTrainedModel, device: torch.device, tokenizer: Any = None, **overrides: Any) -> NativeEngine:
    options = {"max_num_seqs": 16, "max_num_batched_tokens": 64, "block_size": 4, "kv_cache_gb": 0.01}
    options |= {"gpu_memory_utilization": 0.01}
    kind = NativeEngine if device.type == "cuda" else InterpretedEngine
    engine = kind(model.to(device), RolloutConfig(**(options | overrides)), tokenizer)  # type: ignore[arg-type]
    assert isinstance(engine.runner, GraphRunner)
    return engine


def graph_runner(engine: NativeEngine) -> GraphRunner:
    assert isinstance(engine.runner, GraphRunner)
    return engine.runner


def tokens_of(completions: list[list[Completion]]) -> list[list[list[int]]]:
    return [[completion.token_ids for completion in group] for group in completions]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_samples_are_those_of_the_engine_on_a_cpu(
    family: str, make_lm: Any, random_prompts: Any, device: torch.device
) -> None:
    prompts = random_prompts(10, longest=40)
    on_cpu = NativeEngine(make_lm(family), RolloutConfig(max_num_seqs=16, kv_cache_gb=0.01))
    engine = make_engine(make_lm(family), device)
    assert isinstance(engine.runner.model.body, LeanBody)
    for params in (SamplingParams(max_tokens=12, temperature=0.0), SamplingParams(max_tokens=12, temperature=0.9)):
        ours = engine.generate(prompts, params, n=2)
        expected = on_cpu.generate(prompts, params, n=2)
        assert tokens_of(ours) == tokens_of(expected)
        for one, other in zip((c for g in ours for c in g), (c for g in expected for c in g), strict=True):
            assert one.stop_reason is other.stop_reason
            for name in ("log_probs", "raw_log_probs"):
                torch.testing.assert_close(*(torch.tensor(getattr(c, name)) for c in (one, other)), atol=1e-4, rtol=0)
    pool = engine.scheduler.tables.pool
    assert pool.num_free == pool.num_blocks and not engine._flights


def test_a_family_without_a_lean_form_runs_its_own_module(
    make_lm: Any, random_prompts: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = random_prompts(6, longest=20)
    params = SamplingParams(max_tokens=10)
    expected = NativeEngine(make_lm(), RolloutConfig(max_num_seqs=16, kv_cache_gb=0.01)).generate(prompts, params)
    monkeypatch.setattr("podium.engines.rollout.native.body.is_lean", lambda *_args: False)
    engine = make_engine(make_lm(), device)
    assert not isinstance(engine.runner.model.body, LeanBody)
    assert tokens_of(engine.generate(prompts, params)) == tokens_of(expected)
    torch.testing.assert_close(engine.probe(), NativeEngine(make_lm()).probe(), atol=1e-4, rtol=0)


def test_filters_and_stop_conditions_hold(
    make_lm: Any, random_prompts: Any, text_tokenizer: PreTrainedTokenizerFast, device: torch.device
) -> None:
    prompts = random_prompts(6, longest=20, seed=4)
    on_cpu = NativeEngine(make_lm(), RolloutConfig(max_num_seqs=16, kv_cache_gb=0.01), text_tokenizer)
    engine = make_engine(make_lm(), device, text_tokenizer)
    for params in (
        SamplingParams(max_tokens=10, temperature=0.8, top_k=20, top_p=0.9, min_p=0.01),
        SamplingParams(max_tokens=20, stop=("a", "5"), stop_token_ids=(30, 40)),
        SamplingParams(max_tokens=20, ignore_eos=True, stop=("ab",)),
    ):
        ours, theirs = engine.generate(prompts, params, n=2), on_cpu.generate(prompts, params, n=2)
        assert tokens_of(ours) == tokens_of(theirs)
        assert [[c.stop_reason for c in g] for g in ours] == [[c.stop_reason for c in g] for g in theirs]


def test_rows_of_stop_rules_are_used_again_and_a_table_that_moved_is_followed(
    make_lm: Any, random_prompts: Any, text_tokenizer: PreTrainedTokenizerFast, device: torch.device
) -> None:
    prompts = random_prompts(8, longest=20, seed=4)
    on_cpu = NativeEngine(make_lm(), RolloutConfig(max_num_seqs=16, kv_cache_gb=0.01), text_tokenizer)
    engine = make_engine(make_lm(), device, text_tokenizer)
    ends = engine.rules.eos_token_ids
    engine.rules.__init__(engine.vocab_size, ends, text_tokenizer, num_rows=2)  # type: ignore[misc]  # in its place
    graph_runner(engine).state.rules = RuleTable(engine.vocab_size, device, num_rows=2)

    def together(start: int, count: int) -> None:
        """So many requests at once, each with conditions of its own; they end where the CPU's end."""
        rules = [SamplingParams(max_tokens=20, stop_token_ids=(start + 3 * k, start + 3 * k + 1)) for k in range(count)]
        ours = [engine.submit(prompt, params) for prompt, params in zip(prompts, rules, strict=False)]
        while not all(request.done for request in ours):
            engine.step()
        for request, prompt, params in zip(ours, prompts, rules, strict=False):
            assert request.result().token_ids == on_cpu.generate([prompt], params, seeds=[0])[0][0].token_ids

    for start in range(10, 40, 6):
        together(start, count=2)
    assert len(engine.rules.table) == 2, "used again"
    together(11, count=8)
    assert len(engine.rules.table) == len(graph_runner(engine).state.rules.data) == 8
    together(37, count=3)


def test_preemption_and_long_prompts_do_not_change_the_samples(
    make_lm: Any, random_prompts: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [*random_prompts(8, longest=20, seed=7), list(range(2, 72))]
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    roomy = make_engine(make_lm(), device, max_num_batched_tokens=128)
    monkeypatch.setattr(engine_module.NativeEngine, "_num_blocks", lambda *_args: 40)
    tight = make_engine(make_lm(), device, max_num_batched_tokens=32)
    expected = roomy.generate(prompts, params, n=2)
    assert tokens_of(tight.generate(prompts, params, n=2)) == tokens_of(expected)
    assert tight.scheduler.num_preempted > 0 and tight.scheduler.tables.pool.num_free == 40


def test_abort_pause_publish_and_nap_land_what_is_in_the_air(make_lm: Any, device: torch.device) -> None:
    engine = make_engine(make_lm(), device)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    alone = engine.generate([[5, 6]], params, seeds=[0])[0][0].token_ids
    kept, aborted = (engine.submit([5, 6], params, seed=i) for i in range(2))
    for _ in range(3):
        engine.step()
    engine.abort(aborted)
    assert aborted in engine.step()
    assert 0 < len(aborted.result().token_ids) < 60 and aborted.result().stop_reason is StopReason.ABORTED
    engine.pause()
    assert engine.step() == [] and not engine._flights
    engine.resume()
    engine.step()
    engine.sleep()
    engine.wake()
    engine.step()
    engine.set_version(4)
    assert not engine._flights and engine.scheduler.tables.pool.num_free == engine.scheduler.tables.pool.num_blocks
    while not kept.done:
        engine.step()
    assert kept.result().token_ids == alone and kept.result().version == 0


def test_weights_that_give_nan_stop_the_run_and_poison_nothing(make_lm: Any, device: torch.device) -> None:
    model = make_lm()
    engine = make_engine(model, device)
    params = SamplingParams(max_tokens=12)
    good = tokens_of(engine.generate([[5, 6]], params))
    weight = model.model.layers[0].mlp.up_proj.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    with pytest.raises(RolloutError, match="non-finite"):
        engine.generate([[5, 6]], params, n=3)
    with torch.no_grad():
        weight.copy_(kept)
    assert tokens_of(engine.generate([[5, 6]], params)) == good


def test_the_trainers_parameters_are_used_where_they_are(make_lm: Any, device: torch.device) -> None:
    """An optimizer moves them in place, a publish copies into them, and a module may move to the host and back."""
    model, params = make_lm(), SamplingParams(max_tokens=10)
    engine = make_engine(model, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    engine.generate([[5, 6, 7]], params)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    fresh = make_lm()
    fresh.load_state_dict(model.state_dict())
    expected = make_engine(fresh, device).generate([[5, 6, 7]], params)
    assert tokens_of(engine.generate([[5, 6, 7]], params)) == tokens_of(expected)
    model.to("cpu")
    model.to(device)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    assert tokens_of(engine.generate([[5, 6, 7]], params)) == tokens_of(expected)
    engine.load_weights(make_lm(seed=3).state_dict().items(), version=1)
    expected = make_engine(make_lm(seed=3), device).generate([[5, 6, 7]], params)
    assert tokens_of(engine.generate([[5, 6, 7]], params)) == tokens_of(expected)


def test_a_graph_does_not_outlive_a_move_that_a_probe_has_followed(make_lm: Any, device: torch.device) -> None:
    """As in a publish to an engine that slept: its weights come back to another place, are probed, and then run."""
    model, params = make_lm(), SamplingParams(max_tokens=10)
    engine = make_engine(model, device)
    graphs = graph_runner(engine).graphs
    expected = tokens_of(engine.generate([[5, 6, 7]], params))
    before = list(graphs._graphs.values())
    assert before
    engine.probe()
    engine.generate([[5, 6, 7]], params)
    assert list(graphs._graphs.values()) == before, "nothing has moved"
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    engine.probe()
    assert tokens_of(engine.generate([[5, 6, 7]], params)) == expected
    assert graphs._graphs and not any(graph in before for graph in graphs._graphs.values())


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs real graphs")


@needs_cuda
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma", "gemma3", "phi", "phi3", "granite"])
def test_greedy_output_is_that_of_transformers_on_the_device(
    family: str, make_lm: Any, random_prompts: Any, transformers_greedy: Any, device: torch.device
) -> None:
    prompts = random_prompts(GREEDY_PROMPTS, longest=50)
    reference = transformers_greedy(make_lm(family).to(device), prompts, 16)
    completions = make_engine(make_lm(family), device).generate(prompts, SamplingParams(max_tokens=16, temperature=0.0))
    assert [group[0] for group in tokens_of(completions)] == reference


@needs_cuda
def test_every_decoded_token_is_a_replay_and_nothing_is_compiled_twice(
    make_lm: Any, random_prompts: Any, device: torch.device
) -> None:
    from podium.engines.rollout.native.gpu import advance, draw, elementwise, paged_attention

    def compiled() -> int:
        kernels = [
            kernel
            for module in (advance, draw, elementwise, paged_attention)
            for kernel in vars(module).values()
            if hasattr(kernel, "device_caches")
        ]
        return sum(len(cache[0]) for kernel in kernels for cache in kernel.device_caches.values())

    engine = make_engine(make_lm(), device)
    graphs = graph_runner(engine).graphs
    params = SamplingParams(max_tokens=1 + 3 * WINDOW, ignore_eos=True)
    engine.generate(random_prompts(16, longest=40), params)
    captures, replays, kernels = graphs.num_captures, graphs.num_replays, compiled()
    assert captures >= 1 and replays >= 3 * WINDOW and kernels > 5
    engine.generate(random_prompts(16, longest=30, seed=5), params)
    assert (graphs.num_captures, graphs.num_replays, compiled()) == (captures, replays + 3 * WINDOW, kernels)


@needs_cuda
def test_bfloat16_log_probs_stay_near_a_plain_forward_pass(make_lm: Any, random_prompts: Any) -> None:
    model = make_lm("qwen3", hidden_size=256, num_attention_heads=8, head_dim=64, intermediate_size=512)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.05)
    half = model.to("cuda", torch.bfloat16)
    engine = make_engine(half, torch.device("cuda"), block_size=16)
    prompts = random_prompts(12, longest=100)
    groups = engine.generate(prompts, SamplingParams(max_tokens=40, ignore_eos=True), n=2)
    half.set_attn_implementation("sdpa")
    differences = []
    for prompt, group in zip(prompts, groups, strict=True):
        for completion in group:
            ids = torch.tensor([prompt + completion.token_ids], device="cuda")
            with torch.no_grad():
                rows = half(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
            expected = rows.gather(1, ids[0, len(prompt) :, None]).squeeze(1).cpu()
            differences.append((torch.tensor(completion.raw_log_probs) - expected).abs())
    assert torch.cat(differences).mean() < 0.02 and torch.cat(differences).max() < 0.2


@needs_cuda
def test_sleep_frees_the_cache_and_an_own_copy_of_the_weights(make_lm: Any) -> None:
    model = make_lm(vocab_size=50_000, hidden_size=512).to("cuda")
    engine = make_engine(model, torch.device("cuda"), gpu_memory_utilization=0.05)
    params = SamplingParams(max_tokens=10)
    expected = tokens_of(engine.generate([[2, 3]], params))
    assert engine.cache is not None
    cache_bytes = engine.cache.data.numel() * engine.cache.data.element_size()
    weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    held = torch.cuda.memory_allocated()
    engine.sleep()
    assert held - torch.cuda.memory_allocated() >= cache_bytes
    engine.wake()
    assert tokens_of(engine.generate([[2, 3]], params)) == expected
    engine.load_weights({k: v.clone() for k, v in model.state_dict().items()}.items(), version=1)
    held = torch.cuda.memory_allocated()
    engine.sleep()
    assert held - torch.cuda.memory_allocated() >= cache_bytes + weight_bytes
    engine.wake()
    assert tokens_of(engine.generate([[2, 3]], params)) == expected
    for _ in range(3):
        engine.sleep()
        engine.wake()
        engine.generate([[2, 3]], params)
    settled = torch.cuda.memory_allocated()
    for _ in range(10):
        engine.sleep()
        engine.wake()
        engine.generate([[2, 3]], params)
    assert torch.cuda.memory_allocated() <= settled + (1 << 20)
