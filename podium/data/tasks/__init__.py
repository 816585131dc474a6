"""Built-in tasks by name, and the words that ask for them in a config.

`task:addition` is a task with its default options; `task:addition?digits=3&rows=4096&seed=1` sets them. `rows`, `seed`
and `split` belong to every task, the rest are the task's own. Nothing here scores or tokenizes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import unquote

from podium.data.tasks.addition import Addition
from podium.data.tasks.base import Problem, Score, Split, Task
from podium.data.tasks.countdown import Countdown
from podium.data.tasks.reverse import Reverse
from podium.data.tasks.search import Search
from podium.errors import ConfigError
from podium.plugins import closest

__all__ = ["TASKS", "Problem", "Score", "Split", "Task", "TaskWord", "get_task", "is_task_word", "parse_task_word"]

TASKS: dict[str, type[Task]] = {task.name: task for task in (Addition, Countdown, Reverse, Search)}
PREFIX = "task:"
DEFAULT_ROWS: dict[Split, int] = {"train": 4096, "val": 256}


@dataclass(frozen=True)
class TaskWord:
    """A task as a config asks for it."""

    task: Task
    rows: int | None
    """Null: the default of the split."""
    seed: int
    split: Split | None = None
    """Take the rows of this split, whichever is asked for: to sample from training prompts without training."""

    def make_rows(self, split: Split) -> list[dict[str, Any]]:
        split = self.split or split
        return self.task.rows(split, DEFAULT_ROWS[split] if self.rows is None else self.rows, self.seed)


def get_task(name: str, **options: int | str) -> Task:
    """The built-in task `name` with its options."""
    if name not in TASKS:
        raise ConfigError(f"unknown task {name!r}{_nearest(name, list(TASKS))}")
    known = [option.name for option in fields(TASKS[name])]
    for option in options:
        if option not in known:
            raise ConfigError(f"task {name} has no option {option!r}{_nearest(option, known)}")
    return TASKS[name](**options)


def is_task_word(word: str) -> bool:
    return word.startswith(PREFIX)


def parse_task_word(word: str) -> TaskWord:
    """`task:name?option=value&...` as a task, its number of rows and its seed."""
    name, _, query = word.removeprefix(PREFIX).partition("?")
    if name not in TASKS:
        raise ConfigError(f"{word!r}: unknown task {name!r}{_nearest(name, list(TASKS))}")
    types = {option.name: type(option.default) for option in fields(TASKS[name])}
    types |= {"rows": int, "seed": int, "split": str}
    options: dict[str, Any] = {}
    for pair in filter(None, query.split("&")):
        key, equals, text = pair.partition("=")
        if key not in types or not equals:
            raise ConfigError(f"{word!r}: {pair!r} is not option=value{_nearest(key, list(types))}")
        options[key] = _read(word, key, unquote(text), types[key])
    rows, seed, split = options.pop("rows", None), options.pop("seed", 0), options.pop("split", None)
    if rows is not None and rows < 1:
        raise ConfigError(f"{word!r}: rows={rows} must be at least 1")
    if split not in (None, *DEFAULT_ROWS):
        raise ConfigError(f"{word!r}: split={split} must be train or val")
    return TaskWord(get_task(name, **options), rows, seed, split)


def _read(word: str, key: str, text: str, kind: type) -> int | str:
    if kind is not int:
        return text
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{word!r}: {key} must be a whole number, not {text!r}") from None


def _nearest(given: str, known: list[str]) -> str:
    near = closest(given, known)
    return f"; did you mean {near!r}?" if near else f"; known: {', '.join(sorted(known))}"
