"""Try an environment of the user's own before a run does: `podium check env module:Class`.

`check_environment(spec)` loads the class, plays short episodes with it and returns what it found, the errors first.
No model and no engine is needed. `podium check env` prints the findings and fails when one of them is an error; it
needs only this function and `Finding`.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from podium.agents.environment import Environment, EpisodeRow, Observation
from podium.agents.factory import METHODS, constructor_arguments, load_environment
from podium.errors import ConfigError

T = TypeVar("T")
TEXTS = ("hello", "", "<answer>42</answer>", "\U0001f600 \u0000 <tool_call>{", "word " * 2000)
"""What a model might write, or mangle."""
CALL_S, SLOW_S, BLOCKING_S = 20.0, 5.0, 0.5


@dataclass(frozen=True)
class Finding:
    level: Literal["error", "warning", "ok"]
    message: str


def check_environment(
    spec: str, kwargs: Mapping[str, Any] | None = None, row: EpisodeRow | None = None, tokenizer: Any = None
) -> list[Finding]:
    """What is wrong with the environment `module:Class` or `file.py:Class`, and what is right about it."""
    try:
        cls = load_environment(spec)
        arguments = constructor_arguments(cls, spec, dict(kwargs or {}), tokenizer)
    except ConfigError as error:
        return [Finding("error", str(error))]
    findings = [
        Finding("error", f"{name}() must be async: write `async def {name}`")
        for name in (*METHODS, "last_step")
        if callable(getattr(cls, name, None)) and not inspect.iscoroutinefunction(getattr(cls, name))
    ]
    stop = getattr(cls, "stop", ())
    if isinstance(stop, str) or not all(isinstance(word, str) and word for word in stop):
        findings.append(Finding("error", f"stop must be a tuple of non-empty strings, not {stop!r}"))
    if not findings:
        findings = asyncio.run(
            _play(lambda: cls(**arguments), row or example_row(), bool(getattr(cls, "scores", False)))
        )
    order = ("error", "warning", "ok")
    return sorted(findings, key=lambda finding: order.index(finding.level))


def example_row() -> EpisodeRow:
    prompt = [{"role": "user", "content": "What is 6 times 7?"}]
    return EpisodeRow("check-0", 0, prompt, "check", {"target": ["42"]}, {"split": "check", "index": 0})


async def _play(make: Callable[[], Environment], row: EpisodeRow, scores: bool) -> list[Finding]:
    """One episode per text, and two at once."""
    player = _Player(make, row)
    watch = asyncio.create_task(player.watch_loop())
    for text in TEXTS:
        await player.episode(text)
    await asyncio.gather(player.episode("first"), player.episode("second"))
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    findings = player.findings
    if scores and not player.rewards:
        findings.append(Finding("warning", "scores is True, but no step gave a reward; such an episode is unscored"))
    if player.rewards and not scores:
        findings.append(
            Finding("warning", "steps give rewards, which replace the reward function; say so with scores = True")
        )
    if player.blocked_s > BLOCKING_S:
        findings.append(
            Finding("warning", f"a call blocked the event loop for {player.blocked_s:.1f} s; await what takes time")
        )
    if not any(finding.level == "error" for finding in findings):
        findings.append(Finding("ok", f"{player.num_episodes} episodes and {player.num_steps} steps went well"))
    return findings


class _Player:
    def __init__(self, make: Callable[[], Environment], row: EpisodeRow) -> None:
        self.make, self.row = make, row
        self.findings: list[Finding] = []
        self.rewards: list[float] = []
        self.num_episodes = self.num_steps = 0
        self.blocked_s = 0.0

    async def watch_loop(self) -> None:
        """How long the loop did not get its turn."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            self.blocked_s = max(self.blocked_s, time.monotonic() - before)

    async def episode(self, text: str) -> None:
        try:
            environment = self.make()
        except Exception as error:  # noqa: BLE001 (fault boundary: the user's environment)
            self._note(f"the constructor raised {type(error).__name__}: {error}")
            return
        self.num_episodes += 1
        prompt = await self._call("reset", environment.reset(self.row))
        if prompt is not None and not _is_conversation(prompt):
            self._note("reset() must return None or a list of {role, content} messages")
        tokens = list(text.encode())
        for turn in range(3):
            name = "last_step" if turn == 2 and hasattr(environment, "last_step") else "step"
            observation = await self._call(name, getattr(environment, name)(text, tokens))
            self._look_at(name, observation)
            if not isinstance(observation, Observation) or observation.done:
                break
        await self._call("close", environment.close())

    def _look_at(self, name: str, observation: Any) -> None:
        self.num_steps += 1
        if observation is None:
            return  # it raised, and that is noted
        if not isinstance(observation, Observation):
            self._note(f"{name}() must return an Observation, not {type(observation).__name__}")
            return
        text: Any = observation.text
        if not isinstance(text, str):
            self._note(f"{name}(): Observation.text must be text, not {type(text).__name__}")
        reward: Any = observation.reward
        if reward is not None:
            if isinstance(reward, bool | int | float) and reward == reward:
                self.rewards.append(float(reward))
            else:
                self._note(f"{name}(): Observation.reward must be a number, not {reward!r}")

    async def _call(self, name: str, work: Awaitable[T]) -> T | None:
        await asyncio.sleep(0.02)  # the watch sees each call on its own
        start = time.monotonic()
        try:
            async with asyncio.timeout(CALL_S):
                result = await work
        except TimeoutError:
            self._note(f"{name}() took more than {CALL_S:g} s")
            return None
        except Exception as error:  # noqa: BLE001 (fault boundary: the user's environment)
            self._note(f"{name}() raised {type(error).__name__}: {error}")
            return None
        if time.monotonic() - start > SLOW_S:
            self._note(f"{name}() took {time.monotonic() - start:.1f} s", "warning")
        if name in ("step", "last_step") and result is None:
            self._note(f"{name}() must return an Observation, not None")
        return result

    def _note(self, message: str, level: Literal["error", "warning"] = "error") -> None:
        finding = Finding(level, message)
        if finding not in self.findings:
            self.findings.append(finding)


def _is_conversation(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and all(
        isinstance(message, Mapping) and {"role", "content"} <= set(message) for message in prompt
    )
