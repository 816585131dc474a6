"""LLMGenerationManager: runs every episode of a batch, each at its own pace.

Episodes are coroutines over one engine: while one waits for its environment the engine decodes the others, and nobody
waits for the slowest of a turn. A turn's tokens stay as they were sampled; only observations are encoded. Whatever an
environment does, its episode ends with a StopReason and the others go on: `StopReason.ERROR` is the one fault boundary
here. A fault of the engine is not an episode's and is raised.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from podium.agents.environment import Environment, Environments, EpisodeRow, Message, Observation, last_step
from podium.agents.episode import Episode
from podium.agents.limits import Limits
from podium.agents.turns import TurnFormat
from podium.engines.rollout.base import Completion, RolloutEngine, SamplingParams, StopReason
from podium.engines.rollout.request import Request

logger = logging.getLogger(__name__)
T = TypeVar("T")

Finished = Callable[[int, list[Episode]], None]
"""Called with the place of a prompt when all its episodes have ended."""
MAX_NAMED = 3
"""Failed episodes that are named in the log, each batch."""


@runtime_checkable
class ContinuesTurns(Protocol):
    """An engine that keeps what it computed of an episode until its next turn."""

    def submit_turn(
        self, prompt: list[int], params: SamplingParams, seed: int, sample: int, previous: Request | None
    ) -> Request: ...

    def keep(self, requests: Sequence[Request]) -> None: ...

    def release(self, request: Request) -> None: ...


@runtime_checkable
class SubmitsGroups(Protocol):
    def submit_group(self, prompt: list[int], params: SamplingParams, n: int, seed: int = 0) -> list[Request]: ...


@dataclass
class _Running:
    """An episode under way."""

    episode: Episode
    environment: Environment
    seed: int
    sample: int
    request: Request | None = None


class EnvironmentFault(Exception):
    """An environment raised, or took too long."""


class LLMGenerationManager:
    def __init__(
        self, engine: RolloutEngine, tokenizer: Any, environments: Environments, limits: Limits, max_obs_length: int
    ) -> None:
        self.engine, self.environments, self.limits = engine, environments, limits
        self.format = TurnFormat(tokenizer, max_obs_length, environments.tools)
        self._named = 0

    async def run_llm_loop(
        self,
        rows: Sequence[EpisodeRow],
        prompts: Sequence[list[int]],
        params: SamplingParams,
        n: int = 1,
        seeds: Sequence[int] | None = None,
        finished: Finished | None = None,
    ) -> list[list[Episode]]:
        """`n` episodes per row. `params.max_tokens` is a turn's; sample k of a prompt draws from (seed, k, turn)."""
        self._named = 0
        params = replace(params, stop=(*params.stop, *self.environments.stop))
        seeds = range(len(rows)) if seeds is None else seeds
        groups = [
            asyncio.ensure_future(self._run_group(place, row, prompt, params, n, seed, finished))
            for place, (row, prompt, seed) in enumerate(zip(rows, prompts, seeds, strict=True))
        ]
        try:
            return list(await asyncio.gather(*groups))
        except BaseException:
            for group in groups:
                group.cancel()
            await asyncio.gather(*groups, return_exceptions=True)
            raise

    async def _run_group(
        self,
        place: int,
        row: EpisodeRow,
        prompt: list[int],
        params: SamplingParams,
        n: int,
        seed: int,
        finished: Finished | None,
    ) -> list[Episode]:
        started = [self._begin(replace(row, sample=sample), prompt, seed) for sample in range(n)]
        running = list(await asyncio.gather(*started))
        self._submit_first(running, params)
        await _together(self._run_episode(each, params) for each in running)
        episodes = [each.episode for each in running]
        if finished is not None:
            finished(place, episodes)
        return episodes

    async def _begin(self, row: EpisodeRow, prompt: list[int], seed: int) -> _Running:
        environment = self.environments.make()
        running = _Running(Episode(list(prompt)), environment, seed, row.sample)
        try:
            messages = await self._within_time(running.episode, environment.reset(row))
            if messages is not None or self.environments.tools is not None:
                conversation: list[Message] = row.prompt if messages is None else messages
                running.episode.prompt = self.format.encode_prompt(conversation)
                running.episode.progress.context_tokens = len(running.episode.prompt)
        except EnvironmentFault as fault:
            self._fail(running.episode, fault)
        return running

    def _submit_first(self, running: Sequence[_Running], params: SamplingParams) -> None:
        """The first turns of a group that begins alike share the KV of its prompt."""
        able = [each for each in running if self._may_go_on(each.episode)]
        alike = all(each.episode.prompt == able[0].episode.prompt for each in able)
        if len(able) == len(running) > 1 and alike and isinstance(self.engine, SubmitsGroups):
            first = able[0]
            params = self._turn_params(first.episode, params)
            requests = self.engine.submit_group(first.episode.prompt, params, len(able), turn_seed(first.seed, 0))
            if isinstance(self.engine, ContinuesTurns):
                self.engine.keep(requests)
            for each, request in zip(able, requests, strict=True):
                each.request = request
            return
        for each in able:
            self._submit(each, params)

    def _submit(self, each: _Running, params: SamplingParams) -> None:
        episode, previous = each.episode, each.request
        params, seed = self._turn_params(episode, params), turn_seed(each.seed, episode.num_turns)
        if isinstance(self.engine, ContinuesTurns):
            each.request = self.engine.submit_turn(episode.context, params, seed, each.sample, previous)
        else:
            each.request = self.engine.submit(episode.context, params, seed, each.sample)

    def _turn_params(self, episode: Episode, params: SamplingParams) -> SamplingParams:
        return replace(params, max_tokens=min(params.max_tokens, self.limits.context.room(episode.progress)))

    async def _run_episode(self, each: _Running, params: SamplingParams) -> None:
        episode = each.episode
        try:
            while episode.stop_reason is None:
                assert each.request is not None
                completion = await self._written(each)
                episode.write(completion)
                if completion.stop_reason is StopReason.ABORTED:
                    episode.stop_reason = self.limits.time.reached(episode.progress) or StopReason.ABORTED
                    break
                await self._answer(each, completion)
                if self._may_go_on(episode):
                    self._submit(each, params)
        except EnvironmentFault as fault:
            self._fail(episode, fault)
        finally:
            if each.request is not None and isinstance(self.engine, ContinuesTurns):
                self.engine.release(each.request)
            await self._close(each.environment)

    async def _written(self, each: _Running) -> Completion:
        """The turn's tokens; with the time used up, those there are."""
        assert each.request is not None
        waiting = asyncio.ensure_future(_wait_for(each.request))
        try:
            await asyncio.wait([waiting], timeout=self.limits.time.left_s(each.episode.progress))
            if not waiting.done():
                self.engine.abort(each.request)
            return await waiting
        except asyncio.CancelledError:
            waiting.cancel()
            raise

    async def _answer(self, each: _Running, completion: Completion) -> None:
        """Let the environment answer a turn."""
        episode = each.episode
        text = self.format.decode(completion.token_ids)
        last = self.limits.turns.is_last(episode.progress)
        act = (
            last_step(each.environment, text, completion.token_ids)
            if last
            else each.environment.step(text, completion.token_ids)
        )
        observation = await self._within_time(episode, act)
        if not isinstance(observation, Observation):
            raise EnvironmentFault(f"step() returned {type(observation).__name__}, not an Observation")
        episode.num_valid_actions += int(observation.valid)
        episode.num_calls += observation.num_calls
        episode.num_errors += observation.num_errors
        episode.progress.num_errors += observation.num_errors
        episode.add_reward(observation.reward)
        if observation.done:
            episode.stop_reason = observation.stop_reason or StopReason.DONE
            return
        if last:  # nobody reads an answer to the last turn
            ends = completion.stop_reason in (StopReason.EOS, StopReason.LENGTH) and not observation.valid
            episode.stop_reason = completion.stop_reason if ends else StopReason.TURNS
            return
        ended_turn = completion.stop_reason is StopReason.EOS
        episode.observe(self.format.encode_observation(observation, ended_turn))

    def _may_go_on(self, episode: Episode) -> bool:
        if episode.stop_reason is None:
            episode.stop_reason = self.limits.reached(episode.progress)
        return episode.stop_reason is None

    async def _within_time(self, episode: Episode, work: Awaitable[T]) -> T:
        """What an environment returns; whatever it raises, and too long a wait, is an EnvironmentFault."""
        try:
            async with asyncio.timeout(self.limits.time.left_s(episode.progress)):
                return await work
        except TimeoutError as error:
            if self.limits.time.reached(episode.progress) is None:
                raise EnvironmentFault(f"{type(error).__name__}: {error}") from error
            episode.stop_reason = StopReason.TIMEOUT
            raise EnvironmentFault(f"the environment did not answer within {self.limits.time.seconds} s") from error
        except Exception as error:
            raise EnvironmentFault(f"{type(error).__name__}: {error}") from error

    def _fail(self, episode: Episode, fault: EnvironmentFault) -> None:
        episode.error = str(fault)
        if episode.stop_reason is None:
            episode.stop_reason = StopReason.ERROR
            self._named += 1
            if self._named <= MAX_NAMED:
                logger.warning("an episode failed: %s", fault)

    async def _close(self, environment: Environment) -> None:
        try:
            await environment.close()
        except Exception as error:  # noqa: BLE001 (fault boundary: an episode)
            logger.warning("an environment could not be closed: %s: %s", type(error).__name__, error)


def turn_seed(seed: int, turn: int) -> int:
    """Each turn draws its own random numbers; the first those of a single turn."""
    if turn == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}/turn {turn}".encode(), digest_size=8).digest(), "little")


async def _wait_for(request: Request) -> Completion:
    return await request


async def _together(work: Any) -> None:
    """Run coroutines to their end; the first fault of the engine cancels the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
