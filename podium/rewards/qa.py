"""Question answering as in Search-R1: the last `<answer>` of the response against a list of accepted answers.

`qa_em` wants an exact match after normalization, `qa_subem` an accepted answer inside the given one, `qa_em_format`
also looks at the order think → search → information → answer. Only the response is read, never the prompt and the
example in it.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

from podium.data.text import last_tag

ARTICLES = re.compile(r"\b(a|an|the)\b")
TAGS = re.compile(r"(</?(?:think|search|information|answer)>)")
NEXT: dict[str, dict[str, str]] = {
    "start": {"<think>": "in_think"},
    "in_think": {"</think>": "after_think"},
    "after_think": {"<search>": "in_search", "<answer>": "in_answer"},
    "in_search": {"</search>": "after_search"},
    "after_search": {"<information>": "in_information"},
    "in_information": {"</information>": "information"},
    "information": {"<think>": "in_think", "<search>": "in_search", "<answer>": "in_answer"},
    "in_answer": {"</answer>": "end"},
    "end": {},
}


def normalize_answer(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces."""
    kept = "".join(char for char in text.lower() if char not in string.punctuation)
    return " ".join(ARTICLES.sub(" ", kept).split())


def targets(ground_truth: Any) -> list[str]:
    """The accepted answers, normalized: of `{"target": [...]}`, a list, or one answer."""
    value = ground_truth.get("target") if isinstance(ground_truth, Mapping) else ground_truth
    if value is None:
        raise ValueError(f"the ground truth {ground_truth!r} has no 'target'")
    items = [value] if isinstance(value, str | int | float) else list(value)
    return [normalize_answer(str(item)) for item in items]


def written_by_model(solution_str: str, extra_info: Any) -> str:
    """The response without what its environment wrote: a page, or a hint that shows the tags, gives no answer."""
    written = extra_info.get("written") if isinstance(extra_info, Mapping) else None
    return solution_str if written is None else str(written)


def em_check(answer: str, ground_truth: Any) -> bool:
    return normalize_answer(answer) in targets(ground_truth)


def subem_check(answer: str, ground_truth: Any) -> bool:
    given = normalize_answer(answer)
    return any(target and target in given for target in targets(ground_truth))


def qa_em(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, format_score: float = 0.0
) -> dict[str, Any]:
    """1 for an exact match, `format_score` for another answer, 0 without one."""
    return _score(written_by_model(solution_str, extra_info), ground_truth, format_score, substring=False)


def qa_subem(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, format_score: float = 0.0
) -> dict[str, Any]:
    return _score(written_by_model(solution_str, extra_info), ground_truth, format_score, substring=True)


def _score(solution: str, ground_truth: Any, format_score: float, substring: bool) -> dict[str, Any]:
    answer = last_tag(solution, "answer")
    if answer is None:
        return {"score": 0.0, "acc": False, "pred": None}
    right = (subem_check if substring else em_check)(answer, ground_truth)
    return {"score": 1.0 if right else format_score, "acc": right, "pred": answer}


def qa_em_format(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    structure_format_score: float = 0.2,
    final_format_score: float = 0.1,
    retrieval_score: float = 0.0,
) -> dict[str, Any]:
    """Exact match and format together; see `is_valid_sequence` for the format."""
    valid = is_valid_sequence(solution_str)
    answer = last_tag(written_by_model(solution_str, extra_info), "answer")
    found = valid and is_retrieval_correct(solution_str, ground_truth)
    right = answer is not None and em_check(answer, ground_truth)
    if right:
        score = 1.0 if valid else 1.0 - structure_format_score
    elif valid:
        score = structure_format_score + (retrieval_score if found else 0.0)
    else:
        score = final_format_score if answer is not None else 0.0
    return {"score": score, "acc": right, "pred": answer, "format": valid, "retrieval": found}


def is_valid_sequence(text: str) -> bool:
    """Whether the tags come in order, each closed, ending with the answer, and nothing but spaces stands between."""
    state = "start"
    for part in TAGS.split(text):
        if TAGS.fullmatch(part):
            if part not in NEXT[state]:
                return False
            state = NEXT[state][part]
        elif part.strip() and not state.startswith("in_"):
            return False
    return state == "end"


def is_retrieval_correct(text: str, ground_truth: Any) -> bool:
    """Whether an accepted answer stands in what a search returned."""
    blocks = re.findall(r"<information>(.*?)</information>", text, re.DOTALL)
    return any(subem_check(block, ground_truth) for block in blocks)
