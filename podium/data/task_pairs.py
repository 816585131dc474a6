"""Pairs out of built-in tasks: a right answer and a wrong one to the same question.

Wrong answers are near misses, such as a model that is still learning writes: a changed, dropped, added or exchanged
character. The task's own verifier confirms that they are wrong. Pairs of a row are the same in every run.
"""

from __future__ import annotations

import random
import string
from typing import Any

from podium.data.tasks import Split, Task, parse_task_word
from podium.errors import DataError

ATTEMPTS = 100


class TaskPairSource:
    """{prompt, chosen, rejected} for each row of `task:<name>`."""

    def __init__(self, word: str, split: Split) -> None:
        self.name = word
        self._task, self._split = parse_task_word(word).task, split
        self._rows = parse_task_word(word).make_rows(split)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        raw = self._rows[row]
        answer, truth = str(raw["extra_info"]["answer"]), raw["reward_model"]["ground_truth"]
        rng = random.Random(f"{self.name}|{self._split}|{row}")
        return {"prompt": raw["prompt"], "chosen": answer, "rejected": wrong_answer(self._task, answer, truth, rng)}

    def number(self, row: int) -> int:
        return row + 1


def wrong_answer(task: Task, answer: str, ground_truth: Any, rng: random.Random) -> str:
    """A near miss of `answer` that the task's verifier rejects."""
    for _ in range(ATTEMPTS):
        near = _near_miss(answer, rng)
        score = task.score(near, ground_truth)
        if near != answer and (score["score"] if isinstance(score, dict) else score) == 0:
            return near
    raise DataError(f"found no wrong answer near {answer!r} for task {task.name}")


def _near_miss(answer: str, rng: random.Random) -> str:
    at = rng.randrange(max(len(answer), 1))
    other = _like(answer[at] if answer else "0", rng)
    kind = rng.random()
    if kind < 0.6:
        return answer[:at] + other + answer[at + 1 :]
    if kind < 0.7:
        return answer[:at] + answer[at + 1 :]
    if kind < 0.8:
        return answer[: at + 1] + other + answer[at + 1 :]
    letters = list(answer)
    rng.shuffle(letters)
    return "".join(letters)


def _like(char: str, rng: random.Random) -> str:
    """Another character of the same kind."""
    kinds = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
    kind = next((kind for kind in kinds if char in kind), string.digits)
    return rng.choice([other for other in kind if other != char])
