"""RewardManager: scores a batch of responses with a function of the text.

A response whose score cannot be had (the function raised, or returned None, NaN or something that is no number) is
*unscored*: it is never 0, it is counted, and the trainer drops it from its group. When too many fail the run stops and
says which function and which row. It does not know how scores become advantages.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from podium.errors import RewardError
from podium.protocol import DataProto, object_array

logger = logging.getLogger(__name__)

ScoreFn = Callable[[str, str, Any, Any], float | dict[str, Any]]
"""`compute_score(data_source, solution_str, ground_truth, extra_info)`: a score, or a dict with a `score` in it."""


@dataclass(frozen=True)
class RewardResult:
    scores: Tensor  # [B], NaN = unscored
    texts: list[str]
    extra: dict[str, np.ndarray[Any, Any]]
    metrics: dict[str, float]


class RewardManager:
    def __init__(self, tokenizer: Any, score_fn: ScoreFn, max_failure_rate: float = 0.5) -> None:
        self.tokenizer, self.score_fn, self.max_failure_rate = tokenizer, score_fn, max_failure_rate

    def __call__(self, batch: DataProto) -> RewardResult:
        texts = self._texts(batch)
        outcomes = [self._score(batch, row, text) for row, text in enumerate(texts)]
        scores = torch.tensor([float("nan") if o is None else o["score"] for o in outcomes], dtype=torch.float32)
        failed = [row for row, outcome in enumerate(outcomes) if outcome is None]
        if failed and len(failed) > self.max_failure_rate * len(outcomes):
            raise RewardError(
                f"{len(failed)} of {len(outcomes)} rewards of this step failed, more than reward.max_failure_rate="
                f"{self.max_failure_rate} allows; the log above names the function and the first rows"
            )
        names = sorted({key for o in outcomes if o is not None for key in o} - {"score"})
        extra = {name: object_array([None if o is None else o.get(name) for o in outcomes]) for name in names}
        metrics = {"reward/unscored": float(len(failed)), "reward/error": float(len(failed))}
        for name in names:
            numbers = [float(v) for v in extra[name] if isinstance(v, bool | int | float)]
            if numbers:
                metrics[f"reward/{name}"] = sum(numbers) / len(numbers)
        return RewardResult(scores, texts, extra, metrics)

    def _texts(self, batch: DataProto) -> list[str]:
        tensors = batch.tensors()
        responses = tensors["responses"]
        lengths = tensors["attention_mask"][:, -responses.shape[1] :].sum(-1).tolist() if responses.shape[1] else []
        rows = zip(responses.tolist(), lengths or [0] * len(batch), strict=True)
        return [str(self.tokenizer.decode(ids[: int(n)], skip_special_tokens=True)) for ids, n in rows]

    def _score(self, batch: DataProto, row: int, text: str) -> dict[str, Any] | None:
        """The outcome with a finite `score`, or None for unscored."""
        columns = batch.non_tensor_batch
        source = str(columns["data_source"][row])
        try:
            outcome = self.score_fn(source, text, columns["ground_truth"][row], columns["extra_info"][row])
            return _checked(outcome)
        except Exception as error:  # noqa: BLE001  a user's function may raise anything; the row is unscored
            uid = columns["uid"][row] if "uid" in columns else row
            name = getattr(self.score_fn, "__qualname__", repr(self.score_fn))
            logger.warning("reward %s failed on row %s (%s): %s: %s", name, uid, source, type(error).__name__, error)
            return None


def _checked(outcome: Any) -> dict[str, Any]:
    parts = dict(outcome) if isinstance(outcome, Mapping) else {"score": outcome}
    if "score" not in parts:
        raise ValueError(f"the returned dict has no 'score' but {sorted(parts)}")
    score = parts["score"]
    if isinstance(score, str) or score is None or not math.isfinite(float(score)):
        raise ValueError(f"returned {score!r}, which is no finite number")
    return parts | {"score": float(score)}
