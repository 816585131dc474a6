"""From a generated batch to a scored one: which rows stay, and where a score lands.

Rows without a score, and rows in which the model wrote nothing, leave the batch here, counted; a group that loses a
member is simply smaller. With dynamic sampling the groups of several generation rounds are gathered here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from podium.algorithms import at_last_token, degenerate_groups
from podium.config.schema import Config
from podium.engines.rollout.base import StopReason
from podium.errors import PublishError, TrainingError
from podium.metric import Metric
from podium.protocol import DataProto
from podium.rewards.manager import OUTCOME, RewardResult


def check_versions(batch: DataProto, oldest: int, newest: int) -> None:
    """Every sample was written by weights that were really published for it."""
    versions = batch.tensors()["policy_version"]
    if len(versions) and (int(versions.min()) < oldest or int(versions.max()) > newest):
        raise PublishError(
            f"samples were written by policy versions {int(versions.min())} to {int(versions.max())}, but versions "
            f"{oldest} to {newest} were published for them; the rollout engine does not hold the trained weights"
        )


def scored_columns(prompts: DataProto) -> list[str]:
    """The columns a rollout worker needs to score responses while it generates."""
    wanted = ("uid", "data_source", "ground_truth", "extra_info", "raw_prompt", "is_conversation")
    return [name for name in wanted if name in prompts.non_tensor_batch]


class ImageColumns(NamedTuple):
    objects: list[str]
    tensors: list[str]


def image_columns(prompts: DataProto) -> ImageColumns:
    """What prompts with images have beside their tokens."""
    return ImageColumns(
        [name for name in ("multi_modal_inputs",) if name in prompts.non_tensor_batch],
        [name for name in ("image_key",) if name in prompts.tensors()],
    )


def report_scores(sampler: object, batch: DataProto, outcome: RewardResult) -> None:
    """Tell a sampler of the user's own how its prompts went: the mean score of each by uid, for a curriculum."""
    observe = getattr(sampler, "observe", None)
    if observe is None:
        return
    scores: dict[str, list[float]] = {}
    for uid, score in zip(batch.non_tensor_batch["uid"], outcome.scores.tolist(), strict=True):
        if not math.isnan(score):
            scores.setdefault(str(uid), []).append(score)
    observe({uid: sum(values) / len(values) for uid, values in scores.items()})


def score_batch(batch: DataProto, reward_fn: Callable[[DataProto], RewardResult]) -> tuple[DataProto, RewardResult]:
    """The scored rows with their `token_level_scores`, and the outcome for all rows."""
    outcome = reward_fn(batch)
    written = batch.tensors()["response_mask"].sum(-1) > 0
    failed = torch.tensor([reason == StopReason.ERROR for reason in batch.non_tensor_batch["stop_reason"]])
    keep = written & ~outcome.scores.isnan() & ~failed
    if not bool(keep.any()):
        raise TrainingError(f"none of the {len(batch)} responses of this step has a score; see the warnings above")
    outcome.metrics["response/aborted_ratio"] = float((~written).float().mean())
    scored = batch.select_idxs(keep)
    scored.non_tensor_batch.pop(OUTCOME, None)
    mask = scored.tensors()["response_mask"]
    scored.put(token_level_scores=at_last_token(outcome.scores[keep], mask))
    rows = keep.numpy()
    scored.non_tensor_batch |= {f"reward/{name}": values[rows] for name, values in outcome.extra.items()}
    return scored, outcome


def add_greedy_baseline(batch: DataProto, greedy: DataProto, scores: Tensor) -> DataProto:
    """Give each row its prompt's greedy score as `reward_baselines`; rows whose baseline has no score leave."""
    baseline = dict(zip(greedy.non_tensor_batch["uid"], scores.tolist(), strict=True))
    column = torch.tensor([baseline[uid] for uid in batch.non_tensor_batch["uid"]])
    scored = ~column.isnan()
    return batch.select_idxs(scored).put(reward_baselines=column[scored])


def num_groups(parts: Sequence[DataProto]) -> int:
    return len({uid for part in parts for uid in part.non_tensor_batch["uid"]})


def drop_flat_groups(batch: DataProto) -> DataProto:
    """Only the groups whose rewards differ: the others carry no signal."""
    returns = batch.tensors()["token_level_scores"].sum(-1)
    return batch.select_idxs(~degenerate_groups(returns, batch.non_tensor_batch["uid"]))


def gather_groups(parts: Sequence[DataProto], config: Config, metrics: dict[str, float | Metric]) -> DataProto:
    """The groups of all rounds, at most one step's worth; a prompt drawn in two rounds counts once."""
    if not config.algorithm.filter_groups.enable:
        return parts[0]
    metrics["training/num_gen_batches"] = float(len(parts))
    seen: set[object] = set()
    fresh = []
    for part in parts:
        new = np.array([uid not in seen for uid in part.non_tensor_batch["uid"]], dtype=bool)
        seen |= set(part.non_tensor_batch["uid"])
        fresh.append(part.select_idxs(new))
    whole = DataProto.concat(fresh)
    if len(whole) == 0:
        raise TrainingError(
            f"after {len(parts)} generation rounds (algorithm.filter_groups.max_num_gen_batches) every group's rewards "
            "are still equal; the task is too hard or too easy for this model, or the reward is constant"
        )
    wanted = set(list(dict.fromkeys(whole.non_tensor_batch["uid"]))[: config.data.train_batch_size])
    return whole.select_idxs(np.array([uid in wanted for uid in whole.non_tensor_batch["uid"]], dtype=bool))
