"""The loop itself: limits, faults, no barrier, environments of the user's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scripted_engine import ScriptedEngine

from podium.agents.environment import EpisodeRow, Message, Observation, SingleTurn
from podium.agents.episode import Episode
from podium.agents.factory import UserEnvironments, environment_scores
from podium.agents.generation import LLMGenerationManager, turn_seed
from podium.agents.limits import ContextLimit, Limits, TimeLimit, ToolErrorLimit, TurnLimit
from podium.config.schema import Config
from podium.engines.rollout.base import SamplingParams, StopReason
from podium.errors import ConfigError

FILE = Path(__file__).parent / "user_environments.py"


class Environments:
    """Every episode gets an environment of one class."""

    stop: tuple[str, ...] = ()
    scores = False
    tools: list[dict[str, Any]] | None = None

    def __init__(self, cls: Any) -> None:
        self.cls = cls

    async def start(self) -> None: ...

    def make(self) -> Any:
        return self.cls()

    async def close(self) -> None: ...


class Echo:
    """Answers every turn with a word."""

    closed = 0

    async def reset(self, row: EpisodeRow) -> list[Message] | None:
        return None

    async def step(self, text: str, tokens: Sequence[int]) -> Observation:
        return Observation(f"[{text}]", num_calls=1, num_errors=int("bad" in text))

    async def close(self) -> None:
        Echo.closed += 1


def limits(turns: int = 2, context: int = 10_000, **more: Any) -> Limits:
    return Limits(TurnLimit(turns), ContextLimit(context, more.pop("max_model_len", None)), **more)


def run(
    engine: Any,
    tokenizer: Any,
    environments: Any,
    bounds: Limits,
    rows: int = 1,
    n: int = 1,
    max_tokens: int = 50,
    **row: Any,
) -> list[Episode]:
    manager = LLMGenerationManager(engine, tokenizer, environments, bounds, 100)
    prompts = [tokenizer.encode(f"{number}:") for number in range(rows)]
    work = manager.run_llm_loop([EpisodeRow(**row)] * rows, prompts, SamplingParams(max_tokens), n)
    return [episode for group in asyncio.run(work) for episode in group]


def test_a_single_turn_is_an_episode_of_one(tokenizer: Any) -> None:
    (episode,) = run(ScriptedEngine(tokenizer, lambda *_: "hi<eos>"), tokenizer, Environments(SingleTurn), limits())
    assert (episode.stop_reason, episode.num_turns, episode.info_mask) == (StopReason.DONE, 1, [1, 1, 1])


def test_the_last_turn_is_not_answered(tokenizer: Any) -> None:
    engine = ScriptedEngine(tokenizer, lambda *_: "a<eos>")
    (episode,) = run(engine, tokenizer, Environments(Echo), limits(turns=2))
    assert (episode.stop_reason, episode.num_turns) == (StopReason.TURNS, 3)
    assert tokenizer.decode(episode.token_ids, skip_special_tokens=True) == "a[a]a[a]a"


def test_the_context_may_not_grow_past_its_limit(tokenizer: Any) -> None:
    engine = ScriptedEngine(tokenizer, lambda *_: "abcd<eos>")  # 2 + 5 + 6 = 13 tokens before the second turn
    (short,) = run(engine, tokenizer, Environments(Echo), limits(context=12))
    assert (short.stop_reason, short.num_turns) == (StopReason.LENGTH, 1)
    (long,) = run(engine, tokenizer, Environments(Echo), limits(context=13))
    assert long.num_turns == 2


def test_a_turn_never_goes_past_the_models_positions(tokenizer: Any) -> None:
    engine = ScriptedEngine(tokenizer, lambda *_: "x" * 40)
    (episode,) = run(engine, tokenizer, Environments(Echo), limits(turns=0, max_model_len=12))
    assert len(episode.token_ids) == 10
    assert episode.stop_reason is StopReason.TURNS


def test_too_many_tool_errors_end_an_episode(tokenizer: Any) -> None:
    engine = ScriptedEngine(tokenizer, lambda *_: "bad<eos>")
    (episode,) = run(engine, tokenizer, Environments(Echo), limits(turns=9, tool_errors=ToolErrorLimit(1)))
    assert (episode.stop_reason, episode.num_turns, episode.num_errors) == (StopReason.TOOL_ERRORS, 2, 2)


def test_time_ends_a_turn_with_what_is_written(tokenizer: Any) -> None:
    """Written to its end, it would take hours."""
    engine = ScriptedEngine(tokenizer, lambda *_: "x" * 500_000, step_s=0.05)
    (episode,) = run(engine, tokenizer, Environments(Echo), limits(time=TimeLimit(0.2)), max_tokens=500_000)
    assert episode.stop_reason is StopReason.TIMEOUT
    assert len(episode.token_ids) < 500_000


def test_time_ends_an_environment_that_hangs(tokenizer: Any) -> None:
    engine = ScriptedEngine(tokenizer, lambda *_: "1!")
    environments = UserEnvironments(f"{FILE}:Slow", {}, tokenizer)  # would answer in an hour
    (episode,) = run(engine, tokenizer, environments, limits(time=TimeLimit(0.2)), ground_truth={"target": ["5"]})
    assert episode.stop_reason is StopReason.TIMEOUT


def test_an_environment_that_raises_ends_its_episode_and_no_other(tokenizer: Any) -> None:
    class Fragile(Echo):
        async def step(self, text: str, tokens: Sequence[int]) -> Observation:
            if "2" in text:
                raise KeyError("gone")
            return Observation(done=True)

    engine = ScriptedEngine(tokenizer, lambda context, _: f"{context[-2]}<eos>")
    Echo.closed = 0
    episodes = run(engine, tokenizer, Environments(Fragile), limits(), rows=5)
    reasons = [episode.stop_reason for episode in episodes]
    assert reasons == [StopReason.DONE, StopReason.DONE, StopReason.ERROR, StopReason.DONE, StopReason.DONE]
    assert "KeyError" in episodes[2].error
    assert Echo.closed == 5


def test_a_fault_of_the_engine_is_raised(tokenizer: Any) -> None:
    def script(context: str, sample: int) -> str:
        raise RuntimeError("no model")

    with pytest.raises(RuntimeError, match="no model"):
        run(ScriptedEngine(tokenizer, script), tokenizer, Environments(Echo), limits(), rows=3, n=2)


def test_one_slow_episode_in_64_makes_nobody_wait(tokenizer: Any) -> None:
    """The slow one is answered its first turn only when all others are done: would they wait for it, none would be."""
    turns, ended = 4, list[str]()
    others_done = asyncio.Event()

    class Paced(Echo):
        async def reset(self, row: EpisodeRow) -> list[Message] | None:
            self.turn = 0
            return None

        async def step(self, text: str, tokens: Sequence[int]) -> Observation:
            self.turn += 1
            if text.startswith("slow"):
                await asyncio.wait_for(others_done.wait(), 300)
            if self.turn == turns:
                ended.append(text)
                if len(ended) == 63:
                    others_done.set()
                return Observation(done=True)
            return Observation(".")

    def script(context: str, sample: int) -> str:
        number = int(context.partition(":")[0])
        return f"{'slow' if number == 7 else 'fast'}{number}<eos>"

    engine = ScriptedEngine(tokenizer, script)
    episodes = run(engine, tokenizer, Environments(Paced), limits(turns=turns), rows=64)
    assert all(episode.num_turns == turns for episode in episodes)
    assert len(ended) == 64 and ended[-1] == "slow7"


def test_the_users_environment_sets_prompt_stop_and_reward(tokenizer: Any) -> None:
    guesses = ["3!", "9!", "5!"]
    engine = ScriptedEngine(
        tokenizer, lambda context, _: guesses[context.count("higher") + context.count("lower")] + "unread"
    )
    environments = UserEnvironments(f"{FILE}:GuessNumber", {"bonus": 0.25}, tokenizer)
    (episode,) = run(engine, tokenizer, environments, limits(turns=5), ground_truth={"target": ["5"]})
    assert "Guess my number." in tokenizer.decode(episode.prompt)
    assert tokenizer.decode(episode.token_ids) == "3! higher 9! lower 5!"
    assert episode.reward == pytest.approx(1 / 3 + 0.25)
    assert episode.stop_reason is StopReason.DONE


def test_an_environment_without_the_methods_is_refused_before_anything_starts(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="has no reset, step, close"):
        UserEnvironments(f"{FILE}:NoMethods", {}, tokenizer)
    config = Config()
    config.agent.environment = f"{FILE}:GuessNumber"
    assert environment_scores(config)


def test_every_turn_draws_other_random_numbers() -> None:
    seeds = [turn_seed(5, turn) for turn in range(4)]
    assert seeds[0] == 5 and len(set(seeds)) == 4
    assert turn_seed(6, 1) != turn_seed(5, 1)
