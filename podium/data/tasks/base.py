"""What a built-in task is: it draws problems, says what a right answer is, and turns problems into data rows.

A task needs no file and no download. Train and validation rows never share a problem: a hash of the problem itself,
not of its position or its wording, decides the split. This file does not know any single task, nor how rows become
tokens.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from podium.errors import DataError

Split = Literal["train", "val"]
Score = float | dict[str, float]

VAL_SHARE = 10  # one problem in ten is for validation
PATIENCE = 20_000  # draws without a new problem before the task counts as used up


@dataclass(frozen=True)
class Problem:
    question: str
    """What the user asks."""
    answer: str
    """One right response, as the model should write it."""
    ground_truth: str | dict[str, Any]
    """What the verifier needs."""
    key: str
    """The problem itself: equal for wordings that have the same solution, such as a+b and b+a."""


@dataclass(frozen=True)
class Task(ABC):
    """A task's dataclass fields are its options."""

    name: ClassVar[str]
    ability: ClassVar[str]

    @abstractmethod
    def draw(self, rng: random.Random) -> Problem:
        """One random problem."""

    @abstractmethod
    def score(self, solution_str: str, ground_truth: Any) -> Score:
        """1.0 for a right response, 0.0 for a wrong one; or a dict with that under `score`."""

    def compute_score(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
    ) -> Score:
        """`score` in the form every reward function has."""
        return self.score(solution_str, ground_truth)

    def split_of(self, problem: Problem) -> Split:
        digest = hashlib.sha256(f"{self.name}|{problem.key}".encode()).digest()
        return "val" if int.from_bytes(digest[:8], "big") % VAL_SHARE == 0 else "train"

    def problems(self, split: Split, seed: int = 0) -> Iterator[Problem]:
        """Problems of one split in a fixed order, none twice; ends when no new one turns up."""
        rng = random.Random(f"{self.name}|{split}|{seed}")
        seen: set[str] = set()
        misses = 0
        while misses < PATIENCE:
            problem = self.draw(rng)
            if problem.question in seen or self.split_of(problem) != split:
                misses += 1
                continue
            misses = 0
            seen.add(problem.question)
            yield problem

    def rows(self, split: Split, num_rows: int, seed: int = 0) -> list[dict[str, Any]]:
        """The first `num_rows` problems of a split as data rows; fewer rows are a prefix of more rows."""
        problems = itertools.islice(self.problems(split, seed), num_rows)
        rows = [self._row(problem, split, index) for index, problem in enumerate(problems)]
        if len(rows) < num_rows:
            raise DataError(
                f"{self} has {len(rows)} different {split} problems, {num_rows} were asked for; "
                f"ask for fewer rows or make the problems larger"
            )
        return rows

    def _row(self, problem: Problem, split: Split, index: int) -> dict[str, Any]:
        return {
            "data_source": self.name,
            "prompt": [{"role": "user", "content": problem.question}],
            "ability": self.ability,
            "reward_model": {"style": "rule", "ground_truth": problem.ground_truth},
            "extra_info": {"split": split, "index": index, "answer": problem.answer},
        }
