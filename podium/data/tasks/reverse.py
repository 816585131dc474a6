"""Reverse a word: `reverse tiger` is answered by `regit`.

Words are random letters, `min_letters` to `max_letters` long.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from typing import Any, ClassVar

from podium.data.tasks.base import Problem, Task
from podium.errors import ConfigError


@dataclass(frozen=True)
class Reverse(Task):
    name: ClassVar[str] = "reverse"
    ability: ClassVar[str] = "text"

    min_letters: int = 3
    max_letters: int = 5

    def __post_init__(self) -> None:
        if not 1 <= self.min_letters <= self.max_letters:
            raise ConfigError(
                f"task reverse: min_letters={self.min_letters} and max_letters={self.max_letters} must be "
                f"1 <= min_letters <= max_letters"
            )

    def draw(self, rng: random.Random) -> Problem:
        length = rng.randint(self.min_letters, self.max_letters)
        word = "".join(rng.choice(string.ascii_lowercase) for _ in range(length))
        return Problem(question=f"reverse {word}", answer=word[::-1], ground_truth=word[::-1], key=word)

    def score(self, solution_str: str, ground_truth: Any) -> float:
        return float(solution_str.strip() == str(ground_truth))
