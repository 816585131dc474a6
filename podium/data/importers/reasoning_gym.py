"""Tasks of the `reasoning-gym` package: it makes the problems, and its verifier scores them (rewards/reasoning.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from podium.data.importers.public import make_row
from podium.errors import ConfigError

HINT = "Think step by step and give the answer inside <answer> and </answer>."


def reasoning_gym(task: str, split: str, size: int, seed: int) -> Iterator[dict[str, Any]]:
    """`size` problems of a task. The validation split draws from another seed."""
    try:
        import reasoning_gym as gym
    except ImportError as error:
        raise ConfigError("this importer needs reasoning-gym: pip install 'podium[reasoning-gym]'") from error
    try:
        dataset = gym.create_dataset(task, size=size, seed=seed if split == "train" else seed + 1_000_003)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"podium data reasoning_gym:{task}: {error}") from error
    for index in range(size):
        item: dict[str, Any] = dataset[index]
        extra = {"entry": json.dumps(item, default=str)}
        source, prompt = f"reasoning_gym:{task}", f"{item['question']}\n{HINT}"
        yield make_row(source, prompt, "reasoning", str(item["answer"]), split, index, extra)
