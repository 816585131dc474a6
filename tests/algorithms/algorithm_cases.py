"""Batches that the tests of this folder draw: ragged rows, observation tokens inside, groups, padding on request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """`columns`: name -> [B, R] or [B] tensors; mask 0 in the middle is an observation."""

    mask: Tensor
    uids: np.ndarray[Any, Any]
    columns: dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.mask)

    def rows(self, order: list[int]) -> Case:
        picked = torch.tensor(order, dtype=torch.long)
        return Case(self.mask[picked], self.uids[order], {k: v[picked] for k, v in self.columns.items()})

    def padded(self, extra: int, fill: float = 0.0) -> Case:
        """More columns on the right. Rewards there are 0; everything else may hold `fill`, even NaN."""
        pad = torch.nn.functional.pad
        columns = {
            k: v if v.dim() == 1 else pad(v, (0, extra), value=0.0 if k == "token_level_rewards" else fill)
            for k, v in self.columns.items()
        }
        return replace(self, mask=pad(self.mask, (0, extra)), columns=columns)

    def trimmed(self) -> Case:
        """The batch's own width: the last column that holds a model token or a reward."""
        used = self.mask.bool() | (self.columns["token_level_rewards"] != 0)
        width = int(used.any(0).nonzero().max()) + 1 if bool(used.any()) else 1
        columns = {k: v if v.dim() == 1 else v[:, :width] for k, v in self.columns.items()}
        return replace(self, mask=self.mask[:, :width], columns=columns)


def make_case(seed: int, num_rows: int, width: int, group_size: int, observations: bool = True) -> Case:
    """Random, in float64 so that tests compare formulas and not rounding."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, width + 1, num_rows)
    inside = np.arange(width)[None] < lengths[:, None]
    mask = inside & (rng.random((num_rows, width)) > 0.3) if observations else inside
    mask[:, 0] |= ~mask.any(1)
    if num_rows > 2:
        mask[-1] = False  # a row that was rejected
    rewards = np.zeros((num_rows, width))
    rewards[np.arange(num_rows), lengths - 1] = rng.choice([0.0, 0.5, 1.0, 2.0], num_rows)
    rewards += inside * (rng.random((num_rows, width)) < 0.2) * rng.normal(size=(num_rows, width)) * 0.1
    old = np.log(rng.uniform(0.05, 0.95, (num_rows, width)))
    new = np.minimum(old + rng.normal(size=old.shape) * 0.4, -1e-3)
    pi = np.exp(old)
    columns = {
        "token_level_rewards": rewards,
        "advantages": rng.normal(size=old.shape) * 2.0,
        "old_log_probs": old,
        "log_prob": new,
        "values": rng.normal(size=old.shape),
        "returns": rng.normal(size=old.shape),
        "sum_pi_squared": pi**2 + (1 - pi) ** 2 * rng.uniform(0.1, 1.0, old.shape),
        "rollout_is_weights": rng.uniform(0.2, 2.0, old.shape),
        "reward_baselines": rng.normal(size=num_rows),
        "accuracy": rng.choice([0.0, 1.0], num_rows),
        "format": rng.choice([0.0, 0.5, 1.0], num_rows),
    }
    uids = np.array([f"prompt-{row // group_size}" for row in range(num_rows)], dtype=object)
    return Case(
        torch.from_numpy(mask.astype(np.float32)), uids, {k: torch.from_numpy(np.array(v)) for k, v in columns.items()}
    )


@st.composite
def cases(draw: st.DrawFn, observations: bool = True) -> Case:
    return make_case(
        seed=draw(st.integers(0, 2**31)),
        num_rows=draw(st.integers(2, 9)),
        width=draw(st.integers(1, 7)),
        group_size=draw(st.integers(1, 4)),
        observations=observations,
    )
