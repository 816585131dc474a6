"""Addition with carry: `27+58=` is answered by `85`.

Both numbers have up to `digits` digits. The problem a+b is the same as b+a, so that no validation sum was seen in
training the other way round.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, ClassVar

from podium.data.tasks.base import Problem, Task
from podium.errors import ConfigError


@dataclass(frozen=True)
class Addition(Task):
    name: ClassVar[str] = "addition"
    ability: ClassVar[str] = "math"

    digits: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.digits <= 18:
            raise ConfigError(f"task addition: digits={self.digits} is outside 1 to 18")

    def draw(self, rng: random.Random) -> Problem:
        first, second = rng.randrange(10**self.digits), rng.randrange(10**self.digits)
        answer = str(first + second)
        key = f"{min(first, second)}+{max(first, second)}"
        return Problem(question=f"{first}+{second}=", answer=answer, ground_truth=answer, key=key)

    def score(self, solution_str: str, ground_truth: Any) -> float:
        """Right when what follows the last `=` (or all, without one) is the sum and nothing else."""
        return float(solution_str.rpartition("=")[2].strip() == str(ground_truth))
