"""The next turn of an episode goes on from the pages of the one before it, and nothing but time depends on that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from podium.config.schema import RolloutConfig
from podium.engines.rollout.base import SamplingParams, StopReason
from podium.engines.rollout.native.engine import NativeEngine, fewest_to_keep
from podium.engines.rollout.native.kv import KVShape
from podium.engines.rollout.request import Request

GREEDY = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)
OBSERVED = [3, 9, 4, 1, 7]


def make_engine(model: Any, pages: int | None = None) -> NativeEngine:
    page = 4 * KVShape.of(model.config, torch.float32).bytes_per_token()
    room = 0.01 if pages is None else pages * page / (1 << 30)
    config = RolloutConfig(max_num_seqs=16, max_num_batched_tokens=64, block_size=4, kv_cache_gb=room)
    engine = NativeEngine(model, config)
    engine.scheduler.held.fewest_tokens = 0
    return engine


def finish(engine: NativeEngine, requests: list[Request]) -> list[list[int]]:
    while not all(request.done for request in requests):
        engine.step()
    return [request.result().token_ids for request in requests]


def run_turns(
    engine: NativeEngine, prompts: list[list[int]], turns: int, params: SamplingParams = GREEDY
) -> list[list[int]]:
    """Episodes whose turns are answered with the same observation; everything after the prompts."""
    contexts = [list(prompt) for prompt in prompts]
    previous: list[Request | None] = [None] * len(prompts)
    for turn in range(turns):
        requests = [
            engine.submit_turn(context, params, turn, 0, before)
            for context, before in zip(contexts, previous, strict=True)
        ]
        for context, written in zip(contexts, finish(engine, requests), strict=True):
            context += [*written, *OBSERVED]
        previous = list(requests)
    for request in previous:
        assert request is not None
        engine.release(request)
    return [context[len(prompt) :] for context, prompt in zip(contexts, prompts, strict=True)]


def run_plainly(
    engine: NativeEngine, prompts: list[list[int]], turns: int, params: SamplingParams = GREEDY
) -> list[list[int]]:
    contexts = [list(prompt) for prompt in prompts]
    for turn in range(turns):
        for context, group in zip(
            contexts, engine.generate(contexts, params, seeds=[turn] * len(contexts)), strict=True
        ):
            context += [*group[0].token_ids, *OBSERVED]
    return [context[len(prompt) :] for context, prompt in zip(contexts, prompts, strict=True)]


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral", "gemma3", "phi"])
def test_turns_write_what_fresh_requests_write(family: str, make_lm: Any, random_prompts: Any) -> None:
    prompts = random_prompts(6, longest=30)
    plain = run_plainly(make_engine(make_lm(family)), prompts, turns=3)
    engine = make_engine(make_lm(family))
    assert run_turns(engine, prompts, turns=3) == plain
    assert engine.scheduler.held.num_reused > 6 * 2 * 9


def test_sampled_turns_are_the_same_too(make_lm: Any, random_prompts: Any) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.3)
    prompts = random_prompts(8, longest=20)
    assert run_turns(make_engine(make_lm("qwen2")), prompts, 3, params) == run_plainly(
        make_engine(make_lm("qwen2")), prompts, 3, params
    )


def test_all_pages_come_back(make_lm: Any, random_prompts: Any) -> None:
    engine = make_engine(make_lm("qwen2"))
    pool = engine.scheduler.tables.pool
    run_turns(engine, random_prompts(5, longest=20), turns=2)
    assert len(engine.scheduler.held) == 5
    engine.generate([[5, 6]], GREEDY)  # the next step takes up the releases
    assert len(engine.scheduler.held) == 0
    assert pool.num_free == pool.num_blocks and not pool.ref_counts.any()


@pytest.mark.parametrize("pages", [14, 20, 40])
def test_kept_pages_give_way_when_others_need_room(pages: int, make_lm: Any, random_prompts: Any) -> None:
    prompts = random_prompts(8, longest=12)
    plain = run_plainly(make_engine(make_lm("qwen2")), prompts, turns=2)
    engine = make_engine(make_lm("qwen2"), pages)
    assert run_turns(engine, prompts, turns=2) == plain
    engine.generate([[5, 6]], GREEDY)
    pool = engine.scheduler.tables.pool
    assert pool.num_free == pool.num_blocks and not pool.ref_counts.any()


@pytest.mark.parametrize("pages", [12, 16])
def test_an_episode_that_fills_most_of_the_cache_goes_on_by_itself(pages: int, make_lm: Any) -> None:
    """Beside its own pages there is no room for the whole prompt, and nobody else to make any."""
    prompt = [2 + token % 40 for token in range(24)]
    plain = run_plainly(make_engine(make_lm("qwen2")), [prompt], turns=2)
    engine = make_engine(make_lm("qwen2"), pages)
    assert run_turns(engine, [prompt], turns=2) == plain


def test_siblings_that_share_a_prompt_go_their_own_ways(make_lm: Any) -> None:
    """One token of each sibling: their pages are still all shared when they are kept."""
    prompt = [4, 8, 15, 16, 23, 42]
    short = SamplingParams(max_tokens=1, temperature=1.0, ignore_eos=True)
    engine = make_engine(make_lm("qwen2"))
    group = engine.submit_group(prompt, short, 4, seed=1)
    engine.keep(group)
    first = finish(engine, group)
    contexts = [[*prompt, *written, sample, 7] for sample, written in enumerate(first)]
    turns = [engine.submit_turn(c, GREEDY, 2, 0, r) for c, r in zip(contexts, group, strict=True)]
    fresh = make_engine(make_lm("qwen2")).generate(contexts, GREEDY)
    assert finish(engine, turns) == [each[0].token_ids for each in fresh]
    assert engine.scheduler.held.num_reused == 3 * 4 + 6  # a shared page with room stays with the last who has it


def test_new_weights_forget_what_old_ones_computed(make_lm: Any) -> None:
    engine = make_engine(make_lm("qwen2"))
    first = engine.submit_turn([3, 4, 5], GREEDY, 0, 0, None)
    (written,) = finish(engine, [first])
    other = make_lm("qwen2", seed=5)
    engine.load_weights(other.state_dict().items(), version=1)
    assert len(engine.scheduler.held) == 0
    context = [3, 4, 5, *written, *OBSERVED]
    second = engine.submit_turn(context, GREEDY, 0, 0, first)
    assert finish(engine, [second]) == [make_engine(other).generate([context], GREEDY)[0][0].token_ids]


def test_a_prompt_that_does_not_go_on_from_the_turn_before_is_computed_whole(make_lm: Any) -> None:
    engine = make_engine(make_lm("qwen2"))
    first = engine.submit_turn([3, 4, 5], GREEDY, 0, 0, None)
    finish(engine, [first])
    second = engine.submit_turn([9, 9, 9, 9], GREEDY, 0, 0, first)
    assert finish(engine, [second]) == [make_engine(make_lm("qwen2")).generate([[9, 9, 9, 9]], GREEDY)[0][0].token_ids]
    assert engine.scheduler.held.num_reused == 0


def test_an_aborted_turn_can_be_continued(make_lm: Any) -> None:
    engine = make_engine(make_lm("qwen2"))
    first = engine.submit_turn([3, 4, 5], GREEDY, 0, 0, None)
    for _ in range(4):
        engine.step()
    engine.abort(first)
    engine.step()
    assert first.result().stop_reason is StopReason.ABORTED
    context = [3, 4, 5, *first.result().token_ids, *OBSERVED]
    second = engine.submit_turn(context, GREEDY, 0, 0, first)
    fresh = make_engine(make_lm("qwen2")).generate([context], GREEDY)[0][0]
    assert finish(engine, [second]) == [fresh.token_ids]
    assert np.allclose(second.result().log_probs, fresh.log_probs, atol=1e-5)


def test_what_is_sooner_computed_again_is_not_kept(make_lm: Any) -> None:
    engine = make_engine(make_lm("qwen2"))
    engine.scheduler.held.fewest_tokens = 12  # the turn leaves 3 + 9 - 1 tokens in the pages
    finish(engine, [engine.submit_turn([3, 4, 5], GREEDY, 0, 0, None)])
    assert len(engine.scheduler.held) == 0
    assert engine.scheduler.tables.pool.num_free == engine.scheduler.tables.pool.num_blocks
    finish(engine, [engine.submit_turn([3, 4, 5, 6], GREEDY, 0, 0, None)])
    assert len(engine.scheduler.held) == 1


def test_the_larger_the_model_the_shorter_what_is_worth_keeping(make_lm: Any) -> None:
    small, large = make_lm("qwen2"), make_lm("qwen2", intermediate_size=4096)
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert fewest_to_keep(large, cpu) < fewest_to_keep(small, cpu) < fewest_to_keep(small, cuda)
