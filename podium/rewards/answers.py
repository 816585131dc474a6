"""Which rows need an answer: those whose response some reward function compares with it.

A row without one would score 0 whatever the model writes, so it is a bad row (data/dataset.py). Nothing is scored here.
"""

from __future__ import annotations

from podium.config.schema import Config
from podium.data.rows import AnswerNeed, AnswerRule, Row
from podium.rewards.calling import RewardFunction
from podium.rewards.registry import DEFAULT, function_of, load_functions, make_spec
from podium.rewards.remote import is_address

WITHOUT_ANSWER = {"format", "format_boxed", "reasoning_gym"}
"""Built-in functions that look at the response alone, or find what they need in `extra_info`."""


def answer_rule(config: Config) -> AnswerRule:
    """The rule of a run whose responses are scored by functions; where a reward model does it, rows may go without."""
    judge, spec = config.reward_model, make_spec(config.reward)
    functions = list(zip(spec.functions, load_functions(spec).parts, strict=True))

    def rule(row: Row) -> AnswerNeed | None:
        if judge.enable and (judge.rule_weight == 0 or row.reward_model["style"] == "model"):
            return None
        needs = (_need(reference, function, row.data_source) for reference, function in functions)
        return next((need for need in needs if need is not None), None)

    return rule


def _need(reference: str, function: RewardFunction, data_source: str) -> AnswerNeed | None:
    if is_address(reference):
        return None  # it may be a judge
    if ":" in reference:
        return AnswerNeed(reference.rpartition("/")[2], is_own=True) if function.needs_answer else None
    name = function_of(data_source) if reference == DEFAULT else reference
    if name is None or name in WITHOUT_ANSWER:
        return None
    return AnswerNeed(f"the built-in reward {name.removeprefix('task:')}")
