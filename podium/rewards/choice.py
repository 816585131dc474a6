"""Multiple choice: which letter did the response choose?

Looked for in this order: the last `\\boxed{}`, the last `<answer>`, the last "answer is (C)", a response that is
nothing but a letter, its last line. A letter inside a sentence ("A bird ...") is not a choice.
"""

from __future__ import annotations

import re
from typing import Any

from podium.data.text import last_boxed, last_tag

SAID = re.compile(
    r"(?:answer|option|choice)\s*(?:is|:|would be|must be)*\s*(?:option\s*)?[:\s]*\**\(?([A-Z])\)?\**(?![A-Za-z'])",
    re.IGNORECASE,
)
BARE = re.compile(r"^\W*(?:\\text\{)?\(?([A-Z])\)?\}?(?:[.):].*|\W*)$", re.DOTALL)


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> dict[str, Any]:
    """1 for the right letter. The ground truth is a letter, or an index into A, B, C, ..."""
    choice = extract_choice(solution_str)
    right = choice is not None and choice == _letter(ground_truth)
    return {"score": float(right), "acc": right, "pred": choice}


def extract_choice(text: str) -> str | None:
    for part in (last_boxed(text), last_tag(text, "answer")):
        if part is not None and (letter := _bare(part)):
            return letter
    said = [letter for letter in SAID.findall(text) if letter.isupper()]
    if said:
        return str(said[-1])
    lines = text.strip().splitlines()
    return _bare(text) or (_bare(lines[-1]) if lines else None)


def _bare(text: str) -> str | None:
    match = BARE.match(text.strip())
    return match[1] if match else None


def _letter(ground_truth: Any) -> str:
    if isinstance(ground_truth, int) and not isinstance(ground_truth, bool):
        return chr(ord("A") + ground_truth)
    text = str(ground_truth).strip()
    return _bare(text) or text.upper()
