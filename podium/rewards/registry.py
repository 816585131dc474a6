"""Which function scores a row: the user's own, or the built-in one of the row's `data_source`.

A function is named by a built-in name, `module:function`, `path/file.py:function`, or the address of a remote reward.
`default` is the built-in function of each row's data source. Nothing is called here, and nothing heavy is imported
until a function that needs it is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from podium.data.tasks import TASKS
from podium.errors import ConfigError, DataError
from podium.plugins import load_function, nearest
from podium.rewards.calling import RewardFunction, RewardFunctions, RewardSpec
from podium.rewards.remote import RemoteReward, is_address

if TYPE_CHECKING:
    from podium.config.schema import RewardConfig  # reward processes need no configuration library

ScoreFn = Callable[..., Any]
DEFAULT = "default"

FUNCTIONS: dict[str, str] = {
    "gsm8k": "podium.rewards.gsm8k:compute_score",
    "gsm8k_flexible": "podium.rewards.gsm8k:compute_score_flexible",
    "math": "podium.rewards.math:compute_score",
    "multiple_choice": "podium.rewards.choice:compute_score",
    "qa_em": "podium.rewards.qa:qa_em",
    "qa_subem": "podium.rewards.qa:qa_subem",
    "qa_em_format": "podium.rewards.qa:qa_em_format",
    "code": "podium.rewards.code:compute_score",
    "reasoning_gym": "podium.rewards.reasoning:compute_score",
    "format": "podium.rewards.format:think_answer",
    "format_boxed": "podium.rewards.format:boxed",
}
"""Built-in functions by name."""

SOURCES: tuple[tuple[str, str], ...] = (
    (r"(openai/)?gsm8k", "gsm8k"),
    (r"(.*/)?(math|math[-_]?500|math[-_]dapo|math[-_]lighteval|numina.*|aime.*|amc.*|olympiad.*|deepscaler)", "math"),
    (r"(searchr1_)?(nq|triviaqa|popqa|hotpotqa|2wikimultihopqa|musique|bamboogle|web_questions|strategyqa)", "qa_em"),
    (r"(.*/)?(mmlu.*|gpqa.*|arc([-_].*)?|ai2_arc|multiple_choice)", "multiple_choice"),
    (r"(.*/)?(codecontests|apps|codeforces|taco|mbpp|humaneval|code)", "code"),
    (r"reasoning_gym[:/].+", "reasoning_gym"),
)
"""Patterns of data sources, whatever their case, and the function that scores them."""

EXPENSIVE = {"math", "code", "reasoning_gym"}
"""Functions that may take long or run code; they always have a process of their own."""


def function_of(data_source: str) -> str | None:
    """The name of the built-in function of a data source; a task's own verifier is named after the task."""
    if data_source in TASKS:
        return f"task:{data_source}"
    return next((name for pattern, name in SOURCES if re.fullmatch(pattern, data_source, re.IGNORECASE)), None)


def is_cheap(data_source: str) -> bool:
    return function_of(data_source) not in EXPENSIVE


def default_compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Any:
    """The built-in reward of a data source."""
    if data_source in TASKS:
        return TASKS[data_source]().compute_score(data_source, solution_str, ground_truth, extra_info)
    name = function_of(data_source)
    if name is None:
        raise DataError(unknown_source(data_source))
    return builtin(name)(data_source, solution_str, ground_truth, extra_info)


def builtin(name: str) -> ScoreFn:
    if name == DEFAULT:
        return default_compute_score
    if name not in FUNCTIONS:
        raise ConfigError(f"reward.functions: no built-in reward {name!r}{nearest(name, [DEFAULT, *FUNCTIONS])}")
    return load_function(FUNCTIONS[name], "reward")


def make_spec(config: RewardConfig) -> RewardSpec:
    """The functions of a run, by the config."""
    functions = dict(config.functions) or {config.custom_reward_function or DEFAULT: 1.0}
    limits = {
        "timeout_s": config.timeout_s,
        "retries": config.http_retries,
        "max_per_second": config.http_max_per_second / max(config.num_processes, 1),
    }
    return RewardSpec(functions, dict(config.kwargs), config.timeout_s, limits)


def load_functions(spec: RewardSpec) -> RewardFunctions:
    """Load every function; one that cannot be found is a ConfigError."""
    names = short_names(list(spec.functions))
    parts = [
        RewardFunction(names[reference], weight, _load(reference, spec), spec.kwargs)
        for reference, weight in spec.functions.items()
    ]
    return RewardFunctions(parts, spec.timeout_s)


def _load(reference: str, spec: RewardSpec) -> ScoreFn:
    if is_address(reference):
        return RemoteReward(reference, **spec.http).score
    return load_function(reference, "reward function") if ":" in reference else builtin(reference)


def short_names(references: list[str]) -> dict[str, str]:
    """The name of each function in metrics: what stands behind the colon, unless two would be equal."""
    tails = {ref: ref if is_address(ref) else ref.rpartition(":")[2] for ref in references}
    return {ref: tail if list(tails.values()).count(tail) == 1 else ref for ref, tail in tails.items()}


def check_sources(config: RewardConfig, data_sources: set[str], reward_model: bool = False) -> set[str]:
    """A function that does not load, or a data source that nothing can score, is an error before training starts.

    Returns the sources that no function scores; they are allowed with a reward model alone.
    """
    spec = make_spec(config)
    load_functions(spec)
    unknown = {source for source in data_sources if function_of(source) is None} if DEFAULT in spec.functions else set()
    if unknown and not reward_model:
        raise ConfigError(unknown_source(min(unknown)))
    return unknown


def unknown_source(data_source: str) -> str:
    return (
        f"no built-in reward for data_source {data_source!r}; built in: {', '.join(sorted([*TASKS, *FUNCTIONS]))}. "
        "Give your own with reward.custom_reward_function=path/to/file.py:function, or name a built-in one in "
        "reward.functions"
    )
