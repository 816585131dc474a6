"""Which function scores a row: the user's own, or the built-in one of the row's `data_source`."""

from __future__ import annotations

from typing import Any

from podium.config.schema import RewardConfig
from podium.data.tasks import TASKS
from podium.errors import ConfigError, DataError
from podium.plugins import load_function
from podium.rewards.manager import ScoreFn


def default_compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Any:
    """The built-in reward of a data source."""
    if data_source not in TASKS:
        raise DataError(unknown_source(data_source))
    return TASKS[data_source]().compute_score(data_source, solution_str, ground_truth, extra_info)


def unknown_source(data_source: str) -> str:
    return (
        f"no built-in reward for data_source {data_source!r}; built in: {', '.join(sorted(TASKS))}. "
        "Give your own with reward.custom_reward_function=path/to/file.py:function"
    )


def get_score_fn(config: RewardConfig, data_sources: set[str]) -> ScoreFn:
    """The run's reward function; a data source that nothing can score is an error before training starts."""
    if config.custom_reward_function is not None:
        return load_function(config.custom_reward_function, "reward.custom_reward_function")
    for source in sorted(data_sources - set(TASKS)):
        raise ConfigError(unknown_source(source))
    return default_compute_score
