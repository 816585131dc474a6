"""241 math answers in the forms models write them, graded; what the grader gets wrong is listed in docs/rewards.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from podium.rewards.math import compute_score

CASES = [json.loads(line) for line in Path(__file__).with_name("math_cases.jsonl").read_text().splitlines()]
DISAGREEMENTS = {(r"x \le 3", r"(-\infty, 3]")}
"""(answer, truth) where people and the grader differ."""


def test_people_and_grader_agree_but_for_what_the_docs_list():
    assert len(CASES) >= 200
    wrong = set()
    for case in CASES:
        if compute_score("math", case["response"], case["truth"])["acc"] is not case["right"]:
            wrong.add((case["answer"], case["truth"]))
    assert wrong == DISAGREEMENTS
    docs = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()
    assert all(answer in docs and truth in docs for answer, truth in DISAGREEMENTS)


@pytest.mark.parametrize(
    ("response", "truth", "right"),
    [
        ("The answer is 12.", "12", True),
        (r"first \boxed{3}, no: \boxed{4}", "4", True),
        (r"first \boxed{4}, no: \boxed{3}", "4", False),
        ("", "4", False),
        (r"\boxed{}", "4", False),
        (r"\boxed{\frac{1}{}", "4", False),
        (r"\boxed{4}", r"so \boxed{4}", True),
        (r"\boxed{4}", 4, True),
        (r"\boxed{b}", ["a", "b"], True),
    ],
)
def test_which_answer_counts(response, truth, right):
    assert compute_score("math", response, truth)["acc"] is right
