"""Math answers in the forms models write them, graded; what the grader gets wrong is listed in docs/rewards.md.

`math_cases.jsonl` was there while the grader was written; `math_held_out.jsonl` was written by somebody who had not
looked at the grader, and graded once before anything was changed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from podium.rewards.math import compute_score

HERE = Path(__file__).parent
DOCS = (HERE.parents[1] / "docs" / "rewards.md").read_text()
DISAGREEMENTS = {
    "math_cases.jsonl": set(),
    "math_held_out.jsonl": {
        (r"0.\overline{3}", r"\frac{1}{3}"),
        (r"\{x \mid 0 \le x < 3\}", "[0,3)"),
        (r"1500 \text{ m}", r"1.5 \text{ km}"),
        (r"5\text{ kg}", r"5\text{ g}"),
        (r"2 \text{ hours } 30 \text{ minutes}", r"2.5 \text{ hours}"),
        (r"\text{¥}200", "200"),
        (r"\sin 30^\circ", r"\frac{1}{2}"),
        (r"i\sqrt{2}", r"\sqrt{-2}"),
        (r"\frac{\pi}{4} + k\pi, k \in \mathbb{Z}", r"\frac{\pi}{4}+\pi k"),
    },
}
"""(answer, truth) where people and the grader differ."""


@pytest.mark.parametrize(("file", "fewest"), [("math_cases.jsonl", 200), ("math_held_out.jsonl", 60)])
def test_people_and_grader_agree_but_for_what_the_docs_list(file, fewest):
    cases = [json.loads(line) for line in (HERE / file).read_text().splitlines()]
    assert len(cases) >= fewest
    wrong = set()
    for case in cases:
        if compute_score("math", case["response"], case["truth"])["acc"] is not case["right"]:
            wrong.add((case["answer"], case["truth"]))
    assert wrong == DISAGREEMENTS[file]
    assert all(answer in DOCS and truth in DOCS for answer, truth in wrong)


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
