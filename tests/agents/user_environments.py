"""Environments as users might write them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from podium.agents.environment import EpisodeRow, Message, Observation


class GuessNumber:
    """The model guesses the row's number; the environment says higher or lower and rewards early guesses."""

    stop = ("!",)
    scores = True

    def __init__(self, bonus: float = 0.0) -> None:
        self.bonus, self.tries = bonus, 0

    async def reset(self, row: EpisodeRow) -> list[Message] | None:
        self.number = int(row.ground_truth["target"][0])
        return [{"role": "user", "content": "Guess my number."}]

    async def step(self, text: str, tokens: Sequence[int]) -> Observation:
        self.tries += 1
        digits = "".join(char for char in text if char.isdigit())
        if not digits:
            return Observation(" a number please ", valid=False)
        if int(digits) == self.number:
            return Observation(done=True, reward=1.0 / self.tries + self.bonus)
        return Observation(" higher " if int(digits) < self.number else " lower ", reward=0.0)

    async def close(self) -> None: ...


class Slow(GuessNumber):
    async def step(self, text: str, tokens: Sequence[int]) -> Observation:
        await asyncio.sleep(3600)
        return Observation(done=True)


class Blocking(GuessNumber):
    async def step(self, text: str, tokens: Sequence[int]) -> Observation:
        time.sleep(0.7 if text == "hello" else 0)
        return Observation(done=True, reward=1.0)


class Raising(GuessNumber):
    async def step(self, text: str, tokens: Sequence[int]) -> Observation:
        raise ZeroDivisionError("on purpose")


class NotAsync(GuessNumber):
    def step(self, text: str, tokens: Sequence[int]) -> Observation:  # type: ignore[override]
        return Observation()


class Returning(GuessNumber):
    async def step(self, text: str, tokens: Sequence[int]) -> Observation:
        return "text"  # type: ignore[return-value]


class NoMethods:
    pass
