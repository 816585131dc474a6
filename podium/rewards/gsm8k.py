"""GSM8K: the final answer stands behind `####`.

Strict wants exactly that form; flexible takes the last number of the response. Numbers are compared as numbers, so
`1,000`, `$1000` and `1000.0` are one answer.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from podium.data.text import last_number, plain_number

FINAL = re.compile(r"####\s*\$?(-?[\d.,]+)")


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    method: Literal["strict", "flexible"] = "strict",
    format_score: float = 0.0,
) -> dict[str, Any]:
    """1 for the right number, `format_score` for another number in the right form, 0 without one."""
    answer = extract_answer(solution_str, method)
    if answer is None:
        return {"score": 0.0, "acc": False, "pred": None}
    right = _number(answer) is not None and _number(answer) == _number(_truth(ground_truth))
    return {"score": 1.0 if right else format_score, "acc": right, "pred": answer}


def compute_score_flexible(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None
) -> dict[str, Any]:
    return compute_score(data_source, solution_str, ground_truth, extra_info, method="flexible")


def extract_answer(text: str, method: Literal["strict", "flexible"] = "strict") -> str | None:
    if method == "flexible":
        return last_number(text)
    found = FINAL.findall(text)
    return plain_number(found[-1]) if found else None


def _truth(ground_truth: Any) -> str:
    """The number of a ground truth, which may be the whole worked solution."""
    text = str(ground_truth)
    return extract_answer(text) or text


def _number(text: str) -> Decimal | None:
    try:
        return Decimal(plain_number(text))
    except InvalidOperation:
        return None
