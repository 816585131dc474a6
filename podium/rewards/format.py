"""Format rewards: was the response written in the asked form? Not whether it is right; combine it with one that is."""

from __future__ import annotations

import re
from typing import Any

THINK_ANSWER = re.compile(r"\s*<think>(.+?)</think>\s*<answer>(.+?)</answer>\s*", re.DOTALL)


def think_answer(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """1 for `<think>...</think> <answer>...</answer>` and nothing else, each tag once."""
    tags = all(solution_str.count(tag) == 1 for tag in ("<think>", "</think>", "<answer>", "</answer>"))
    return float(tags and THINK_ANSWER.fullmatch(solution_str) is not None)


def boxed(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    r"""1 for exactly one `\boxed{}`."""
    return float(len(re.findall(r"\\boxed\s*\{", solution_str)) == 1)
