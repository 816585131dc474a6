from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from podium.config.schema import RolloutConfig
from podium.engines.rollout import make_rollout_engine
from podium.engines.rollout.base import SamplingParams, StopReason
from podium.engines.rollout.hf import HFEngine
from podium.engines.rollout.native.engine import NativeEngine
from podium.models.attention import ATTENTION_NAME


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=12, temperature=0.0),
        SamplingParams(max_tokens=12),
        SamplingParams(max_tokens=12, temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, ignore_eos=True),
        SamplingParams(max_tokens=12, stop=("a", "5"), stop_token_ids=(30, 40)),
    ],
    ids=["greedy", "plain", "filtered", "stops"],
)
def test_the_reference_engine_gives_the_same_completions(
    params: SamplingParams, make_lm: Any, random_prompts: Any, text_tokenizer: PreTrainedTokenizerFast
) -> None:
    model = make_lm()
    prompts = random_prompts(12, longest=20, seed=11)
    native = NativeEngine(model, RolloutConfig(max_num_seqs=16, kv_cache_gb=0.01), text_tokenizer)
    reference = HFEngine(model, RolloutConfig(max_num_seqs=10), text_tokenizer)
    ours = native.generate(prompts, params, n=2)
    theirs = reference.generate(prompts, params, n=2)
    for one, other in zip((c for g in ours for c in g), (c for g in theirs for c in g), strict=True):
        assert (one.token_ids, one.stop_reason, one.version) == (other.token_ids, other.stop_reason, other.version)
        for name in ("log_probs", "raw_log_probs"):
            torch.testing.assert_close(*(torch.tensor(getattr(c, name)) for c in (one, other)), atol=1e-4, rtol=0)
    assert model.config._attn_implementation == ATTENTION_NAME, "the module keeps its attention"


def test_the_probe_is_that_of_the_native_engine(make_lm: Any) -> None:
    model = make_lm("qwen3")
    torch.testing.assert_close(HFEngine(model).probe(), NativeEngine(model).probe(), atol=1e-5, rtol=0)


def test_requests_wait_while_paused_and_can_be_aborted(make_lm: Any) -> None:
    engine = HFEngine(make_lm())
    engine.pause()
    first, second = (engine.submit([2, 3], SamplingParams(max_tokens=3), seed=i) for i in range(2))
    assert engine.step() == []
    engine.abort(first)
    assert engine.step() == [first] and first.result().stop_reason is StopReason.ABORTED
    engine.resume()
    assert engine.step() == [second] and len(second.result().token_ids) <= 3


@pytest.mark.parametrize(("name", "kind"), [("native", NativeEngine), ("hf", HFEngine)])
def test_the_configured_engine_is_made(name: Any, kind: type, make_lm: Any) -> None:
    assert type(make_rollout_engine(RolloutConfig(name=name, kv_cache_gb=0.01), make_lm())) is kind
