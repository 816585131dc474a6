"""The verifiers of the `reasoning-gym` package. Rows are made by `podium data reasoning_gym:<task>`."""

from __future__ import annotations

import json
from typing import Any

from podium.data.text import last_boxed, last_tag
from podium.errors import ConfigError


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> dict[str, Any]:
    """The task's own score, between 0 and 1, of the last `<answer>`, the last box, or the whole response."""
    try:
        from reasoning_gym import get_score_answer_fn
    except ImportError as error:
        raise ConfigError("this reward needs reasoning-gym: pip install 'podium[reasoning-gym]'") from error
    entry = (extra_info or {}).get("entry")
    if not isinstance(entry, str):
        raise ValueError("the row has no extra_info.entry; make the rows with: podium data reasoning_gym:<task>")
    item = json.loads(entry)
    tagged = last_tag(solution_str, "answer")
    answer = tagged if tagged is not None else last_boxed(solution_str) or solution_str.strip()
    verify: Any = get_score_answer_fn(item["metadata"]["source_dataset"])
    score = float(verify(answer, item))
    return {"score": score, "acc": score >= 1.0, "pred": answer}
