"""The closed sets of words that several parts share."""

from __future__ import annotations

from typing import Literal

ScheduleName = Literal["linear", "cosine", "sigmoid", "exp", "step"]
LossAggMode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
