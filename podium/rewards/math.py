"""Math answers: the boxed expression of a response against the right one, compared as mathematics by `math-verify`.

The last `\\boxed{}` counts; without one, what `math-verify` finds at the end of the text (the last expression or
number). Equal strings are right without a parser. Parsing model-written LaTeX can take very long, so this family always
runs in a reward process, whose time limit is the real one; docs/rewards.md lists where the grader and people disagree.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from podium.data.text import last_boxed
from podium.errors import ConfigError

UNITS = re.compile(
    r"\\(?:text|mathrm|mbox)\s*\{\s*(?:square |cubic |sq\.? )?(?:cm|mm|km|m|in|ft|inch(?:es)?|feet|foot|yards?|miles?|"
    r"met(?:er|re)s?|centimet(?:er|re)s?|units?|degrees?|hours?|minutes?|seconds?|days?|dollars?|cents?|people|students|"
    r"kg|g|grams?|km/h|mph|m/s)\s*\.?\s*\}(?:\s*\^\s*\{?[23]\}?)?"
)


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> dict[str, Any]:
    """1 for an answer equal to the ground truth (or to one of them, when it is a list)."""
    boxed = last_boxed(solution_str)
    truths = ground_truth if isinstance(ground_truth, list | tuple) else [ground_truth]
    answer = boxed if boxed is not None else solution_str
    right = any(is_equal(answer, str(truth), whole_text=boxed is None) for truth in truths)
    return {"score": float(right), "acc": right, "pred": boxed}


def is_equal(answer: str, truth: str, whole_text: bool = False) -> bool:
    """Whether two answers mean the same. `whole_text`: the answer is a whole response without a box."""
    truth = last_boxed(truth) or truth
    if not whole_text and tidy(answer) == tidy(truth):
        return True
    parse, verify = _verifier()
    gold = parse(f"\\boxed{{{clean(truth)}}}", parsing_timeout=None)
    given = parse(answer if whole_text else f"\\boxed{{{clean(answer)}}}", parsing_timeout=None)
    # an inequality may stand for the interval it describes
    return bool(gold and given and verify(gold, given, allow_set_relation_comp=True, timeout_seconds=None))


def clean(text: str) -> str:
    """Without what changes the look and not the value: units, a trailing dot, spacing commands."""
    text = UNITS.sub("", text)
    text = re.sub(r"(?<!\\)\\(?:left|right|displaystyle|[,;!: ])(?![A-Za-z])", "", text)
    text = text.replace("\\varnothing", "\\emptyset")
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\degree|°", "", text)
    return text.strip().rstrip(".").strip()


def tidy(text: str) -> str:
    """A form in which answers that differ only in spaces, dollars and brackets of one letter are equal strings."""
    text = re.sub(r"\\(?:text|mathrm|textbf|mbox)\s*\{([^{}]*)\}", r"\1", clean(text))
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("$", "")
    return re.sub(r"\s+", "", text)


@lru_cache(maxsize=1)
def _verifier() -> tuple[Any, Any]:
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise ConfigError("the math reward needs math-verify; install it with: pip install math-verify") from error
    for name in ("math_verify.parser", "math_verify.grader", "math_verify.utils"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # it logs every expression that it cannot read
    return parse, verify
