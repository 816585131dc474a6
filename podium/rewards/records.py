"""What goes into a reward function and what comes out of it, in plain types that cross a process boundary.

Nothing heavy is imported here: reward processes start in a fraction of a second because of it.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class RewardRow:
    """One response to score."""

    data_source: str
    response: str
    ground_truth: Any = None
    extra_info: Any = None
    prompt: Any = None
    """The conversation, or the plain text where the data file has plain text."""
    uid: str = ""


@dataclass(frozen=True)
class Outcome:
    """A score with whatever else the function returned, or the reason why there is none."""

    status: Literal["ok", "error", "timeout", "skipped"]
    """`skipped`: no function was asked, since the response itself failed."""
    values: dict[str, Any] = field(default_factory=dict)
    """With a finite `score`, when the status is ok."""
    reason: str = ""
    """Why there is no score, with the function's name."""


def scored(values: Mapping[str, Any]) -> Outcome:
    return Outcome("ok", dict(values))


def skipped(reason: str) -> Outcome:
    return Outcome("skipped", reason=reason)


def failed(function: str, error: BaseException | str, status: Literal["error", "timeout"] = "error") -> Outcome:
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}{_where(error)}"
    return Outcome(status, reason=f"{function}: {text}")


def _where(error: BaseException) -> str:
    """The innermost line of somebody else's code that the error came through: a reward's author wants that one."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).parent != Path(__file__).parent]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""


def checked(returned: Any) -> dict[str, Any]:
    """A function's return value as a dict with a finite `score`; anything else raises ValueError."""
    parts = dict(returned) if isinstance(returned, Mapping) else {"score": returned}
    if "score" not in parts:
        raise ValueError(f"the returned dict has no 'score' but {sorted(map(str, parts))}")
    score = parts["score"]
    if score is None or isinstance(score, str | bytes):
        raise ValueError(f"returned {score!r}, which is no finite number")
    try:
        number = float(score)
    except (TypeError, ValueError):
        raise ValueError(f"returned {score!r}, which is no finite number") from None
    if not math.isfinite(number):
        raise ValueError(f"returned {score!r}, which is no finite number")
    return {str(key): value for key, value in parts.items()} | {"score": number}
