"""Pairs for a reward model out of a policy's own scored samples: the dumps of a run, or of `podium eval --out`.

The samples of one prompt are compared by their score; a better and a worse one are a pair. Each different text counts
once, so that a mistake the policy makes often is one pair among the others. A sample without a score is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from podium.data.prompts import PromptError

Row = dict[str, Any]

PAIRS_PER_PROMPT = 8
"""More pairs of one prompt teach little that is new."""


def pairs(raw: Iterable[Row], split: str) -> Iterator[Row]:
    """{prompt_text, chosen, rejected} from rows of `input`, `output`, `score` and `uid`."""
    by_prompt: dict[tuple[Any, ...], dict[str, float]] = {}
    prompts: dict[tuple[Any, ...], str] = {}
    for row in raw:
        missing = [key for key in ("input", "output", "uid") if not isinstance(row.get(key), str)]
        if missing or "score" not in row:
            names = ", ".join(missing or ["score"])
            raise PromptError(f"no {names}; a rollout or validation dump has input, output, score and uid")
        if row["score"] is not None:
            key = (row["uid"], row["input"])
            prompts[key] = row["input"]
            by_prompt.setdefault(key, {})[row["output"]] = float(row["score"])
    for key, scores in by_prompt.items():
        ordered = sorted(scores, key=lambda text: (-scores[text], text))
        found = [(better, worse) for better in ordered for worse in ordered if scores[better] > scores[worse]]
        for chosen, rejected in found[:PAIRS_PER_PROMPT]:
            yield {"prompt_text": prompts[key], "chosen": chosen, "rejected": rejected}
