"""Requests from coroutines: what awaits, submits, cancels and pauses while the engine steps in its own thread."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from podium.config.schema import RolloutConfig
from podium.engines.rollout.base import Completion, SamplingParams, StopReason
from podium.engines.rollout.native.engine import NativeEngine
from podium.engines.rollout.request import Request
from podium.errors import RolloutError

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)
LIMIT_S = 300.0


@pytest.fixture
def engine(make_lm: Any) -> NativeEngine:
    config = RolloutConfig(max_num_seqs=8, max_num_batched_tokens=64, block_size=4, kv_cache_gb=0.01)
    return NativeEngine(make_lm(), config)


def test_awaited_requests_give_what_generate_gives(engine: NativeEngine, random_prompts: Any) -> None:
    prompts = random_prompts(20, longest=12)

    async def main() -> list[Completion]:
        async with asyncio.timeout(LIMIT_S):
            return await asyncio.gather(*(engine.submit(p, PARAMS, seed=i) for i, p in enumerate(prompts)))

    expected = [group[0].token_ids for group in engine.generate(prompts, PARAMS)]
    assert [completion.token_ids for completion in asyncio.run(main())] == expected


def test_episodes_of_several_turns_run_side_by_side(engine: NativeEngine) -> None:
    """Each coroutine submits its next turn as soon as it has the last one; turns of different episodes share steps."""

    async def episode(seed: int) -> list[int]:
        tokens = [2 + seed]
        for turn in range(3):
            completion = await engine.submit(tokens, PARAMS, seed=seed, sample=turn)
            tokens = [*tokens, *completion.token_ids, 3]
        return tokens

    async def main() -> list[list[int]]:
        async with asyncio.timeout(LIMIT_S):
            return await asyncio.gather(*(episode(seed) for seed in range(6)))

    steps = 0
    advance = engine._advance

    def counted(arrivals: list[list[Request]], aborts: list[Request]) -> list[Request]:
        nonlocal steps
        steps += 1
        return advance(arrivals, aborts)

    engine._advance = counted  # type: ignore[method-assign]
    together = asyncio.run(main())
    assert steps < 6 * 3 * PARAMS.max_tokens / 3, "turns of different episodes were computed one by one"
    alone = []
    for seed in range(6):
        tokens = [2 + seed]
        for turn in range(3):
            request = engine.submit(tokens, PARAMS, seed=seed, sample=turn)
            while not request.done:
                engine.step()
            tokens = [*tokens, *request.result().token_ids, 3]
        alone.append(tokens)
    assert together == alone


def test_the_event_loop_stays_free_while_the_engine_computes(engine: NativeEngine) -> None:
    """Every step waits until the loop has had its turn a few more times: with a loop that is held it never would."""
    ticks, advance = 0, engine._advance

    def waiting(arrivals: list[list[Request]], aborts: list[Request]) -> list[Request]:
        wanted, deadline = ticks + 3, time.monotonic() + LIMIT_S
        while ticks < wanted:
            assert time.monotonic() < deadline, "the event loop stands still while the engine computes"
            time.sleep(0.001)
        return advance(arrivals, aborts)

    engine._advance = waiting  # type: ignore[method-assign]

    async def main() -> Completion:
        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticker = asyncio.create_task(tick())
        async with asyncio.timeout(2 * LIMIT_S):
            completion = await engine.submit([5], PARAMS)
        ticker.cancel()
        return completion

    assert len(asyncio.run(main()).token_ids) == PARAMS.max_tokens


def test_cancelling_an_await_aborts_its_request(engine: NativeEngine) -> None:
    """The engine is held after some tokens until the await was cancelled, so that it cannot be faster."""
    endless = SamplingParams(max_tokens=200, ignore_eos=True)
    steps, advance, cancelled = 0, engine._advance, threading.Event()

    def held(arrivals: list[list[Request]], aborts: list[Request]) -> list[Request]:
        nonlocal steps
        steps += 1
        assert steps < 5 or cancelled.wait(LIMIT_S)
        return advance(arrivals, aborts)

    engine._advance = held  # type: ignore[method-assign]

    async def main() -> Request:
        request = engine.submit([5], endless)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await request
        cancelled.set()
        async with asyncio.timeout(LIMIT_S):
            await engine.submit([6], PARAMS)
        return request

    request = asyncio.run(main())
    assert request.result().stop_reason is StopReason.ABORTED
    assert not engine._has_work()


def test_a_pause_holds_awaiting_coroutines_until_resume(engine: NativeEngine) -> None:
    async def main() -> Completion:
        engine.pause()
        waiting = asyncio.ensure_future(_await(engine.submit([5, 6], PARAMS, seed=4)))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        engine.resume()
        async with asyncio.timeout(LIMIT_S):
            return await waiting

    assert asyncio.run(main()).token_ids == engine.generate([[5, 6]], PARAMS, seeds=[4])[0][0].token_ids


async def _await(request: Request) -> Completion:
    return await request


def test_a_failing_step_fails_every_request_under_way_and_the_engine_lives_on(
    engine: NativeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object) -> None:
        raise RuntimeError("the device is gone")

    async def main() -> list[Completion | BaseException]:
        async with asyncio.timeout(LIMIT_S):
            requests = [engine.submit([5], PARAMS), engine.submit([6], PARAMS)]
            return await asyncio.gather(*requests, return_exceptions=True)

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "launch", broken)
        results = asyncio.run(main())
        assert [str(result) for result in results] == ["the device is gone"] * 2
        with pytest.raises(RuntimeError, match="gone"):
            engine.generate([[5]], PARAMS)
    assert len(engine.generate([[5]], PARAMS)[0][0].token_ids) == 6


def test_an_engine_serves_one_event_loop_after_another(engine: NativeEngine) -> None:
    async def main() -> Completion:
        async with asyncio.timeout(LIMIT_S):
            return await engine.submit([5], PARAMS)

    assert asyncio.run(main()) == asyncio.run(main())


def test_a_finished_request_can_be_awaited_again(engine: NativeEngine) -> None:
    request = engine.submit([5], PARAMS)
    while not request.done:
        engine.step()
    assert asyncio.run(_await(request)) is request.result()


def test_seeds_and_samples_are_counted(engine: NativeEngine) -> None:
    with pytest.raises(RolloutError, match="1 seeds were given for 2 prompts"):
        engine.generate([[2], [3]], PARAMS, seeds=[1])
    with pytest.raises(RolloutError, match="at least 1"):
        engine.generate([[2]], PARAMS, n=0)
