"""One score from two opinions: the rule's and the reward model's.

In training a response's score is rule_weight · rule + weight · reward model; a row without a rule (its `reward_model`
style is `model`, or nothing scores its data source) has the reward model's part alone. A validation score is the rule's
wherever there is a rule, since that is what the run is after. Nothing here runs a model.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from podium.config.schema import RewardModelConfig
from podium.protocol import object_array
from podium.rewards.manager import RewardResult


def combine_scores(outcome: RewardResult, rm_scores: Tensor, config: RewardModelConfig) -> RewardResult:
    """The outcome with the scores to train on; NaN where a part that counts has no finite score."""
    model = _finite(rm_scores)
    rule_counts = ~outcome.without_rule & (config.rule_weight != 0)
    scores = config.weight * model + torch.where(rule_counts, config.rule_weight * outcome.scores, 0.0)
    return _with_parts(replace(outcome, scores=scores), outcome.scores, model)


def validation_scores(outcome: RewardResult, rm_scores: Tensor) -> RewardResult:
    """The outcome with the rule's scores where there is a rule, and the model's elsewhere."""
    model = _finite(rm_scores)
    scores = torch.where(outcome.without_rule, model, outcome.scores)
    return _with_parts(replace(outcome, scores=scores), outcome.scores, model)


def _finite(scores: Tensor) -> Tensor:
    return torch.where(scores.isfinite(), scores, torch.nan)


def _with_parts(outcome: RewardResult, rule: Tensor, model: Tensor) -> RewardResult:
    """Both opinions as columns and means, beside what they became."""
    parts = {"rule": rule, "rm": model}
    columns = {name: object_array([None if x != x else x for x in part.tolist()]) for name, part in parts.items()}
    means = {f"reward/{name}_mean": float(part.nanmean()) for name, part in parts.items() if not part.isnan().all()}
    unscored = {"reward/unscored": float(outcome.scores.isnan().sum())}
    return replace(outcome, extra=outcome.extra | columns, metrics=outcome.metrics | means | unscored)
