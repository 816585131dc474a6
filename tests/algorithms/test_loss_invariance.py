"""Loss and gradient of an optimizer step do not depend on how its rows are cut, padded, ordered or dealt to ranks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from algorithm_cases import Case, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from podium.algorithms import LOSS_AGG_MODES, agg_count, get_policy_loss_fn, policy_loss_names, value_loss_sum
from podium.config.schema import ActorConfig, PolicyLossConfig
from podium.metric import Metrics, merge_metrics, reduce_metrics

L_MAX = 7.0
CONFIG = ActorConfig(
    clip_ratio=0.2,
    policy_loss=PolicyLossConfig(clip_cov_ratio=0.2, clip_cov_lb=0.0, clip_cov_ub=5.0, kl_cov_ratio=0.2),
)
LOSSES = [
    (name, mode)
    for name in policy_loss_names()
    for mode in LOSS_AGG_MODES
    if get_policy_loss_fn(name).fixed_agg_mode in (None, mode)
]


@dataclass
class Step:
    """What one optimizer step came to: the loss, the gradient by original row and column, and the metrics."""

    loss: float
    gradient: Tensor
    metrics: dict[str, float]


def optimizer_step(name: str, mode: str, case: Case, ranks: list[list[list[int]]], widths: list[int]) -> Step:
    """Run rows dealt to ranks and cut into micro-batches; `widths` cycles through paddings of the micro-batches."""
    gradient = torch.zeros_like(case.columns["log_prob"])
    total, count, metrics = 0.0, 0.0, []
    everyone = [row for rank in ranks for micro in rank for row in micro]
    selection = selection_of(name, case, everyone)
    for rank in ranks:
        rows_of_rank = [row for micro in rank for row in micro]
        count += agg_count(case.mask[rows_of_rank], mode, L_MAX)
        for number, micro in enumerate(rank):
            part = case.rows(micro).trimmed().padded(widths[number % len(widths)], float("nan"))
            width = min(part.mask.shape[1], gradient.shape[1])
            leaf = part.columns["log_prob" if name != "value" else "values"].clone().requires_grad_()
            chosen = None if selection is None else torch.nn.functional.pad(selection[micro], (0, 99))
            loss, found = loss_sum(name, mode, part, leaf, chosen)
            (grad,) = torch.autograd.grad(loss, leaf)
            gradient[micro, :width] += grad[:, :width]
            assert grad[:, width:].abs().sum() == 0.0
            total += float(loss.detach())
            metrics.append(found)
    divisor = max(count, 1.0)
    return Step(total / divisor, gradient / divisor, reduce_metrics(merge_metrics(metrics)))


def selection_of(name: str, case: Case, order: list[int]) -> Tensor | None:
    """Made from the rows in the order in which they are dealt, handed back by original row."""
    if name == "value" or not get_policy_loss_fn(name).needs_selection:
        return None
    part = case.rows(order)
    columns = part.columns
    chosen = get_policy_loss_fn(name).prepare(
        columns["log_prob"], columns["old_log_probs"], columns["advantages"], part.mask, CONFIG, seed=3
    )
    return chosen[torch.argsort(torch.tensor(order))]


def loss_sum(name: str, mode: str, part: Case, leaf: Tensor, chosen: Tensor | None) -> tuple[Tensor, Metrics]:
    columns = part.columns
    if name == "value":
        old_values = columns["log_prob"]
        return value_loss_sum(leaf, columns["returns"], old_values, part.mask, 0.3, mode, L_MAX)
    return get_policy_loss_fn(name)(
        columns["old_log_probs"],
        leaf,
        columns["advantages"],
        part.mask,
        mode,
        CONFIG,
        columns["rollout_is_weights"],
        None if chosen is None else chosen[:, : part.mask.shape[1]],
        L_MAX,
    )


def cut(rows: list[int], cuts: list[int]) -> list[list[int]]:
    """Consecutive pieces; an empty piece is a rank or micro-batch without rows."""
    edges = [0, *sorted(c % (len(rows) + 1) for c in cuts), len(rows)]
    return [rows[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize(("name", "mode"), [*LOSSES, *(("value", mode) for mode in LOSS_AGG_MODES)])
@given(case=cases(), data=st.data())
@settings(max_examples=8, deadline=None)
def test_loss_gradient_and_metrics_are_those_of_the_whole(
    name: str, mode: str, case: Case, data: st.DataObject
) -> None:
    whole = optimizer_step(name, mode, case, [[list(range(len(case)))]], [0])
    order = data.draw(st.permutations(range(len(case))), label="order")
    places = st.lists(st.integers(0, 9), max_size=3)
    ranks = [
        [micro for micro in cut(rank, data.draw(places, label="micro-batches")) if micro]
        for rank in cut(list(order), data.draw(places, label="ranks"))
    ]
    widths = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3), label="padding")
    parts = optimizer_step(name, mode, case, ranks, widths)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-9, abs=1e-12)
    torch.testing.assert_close(parts.gradient, whole.gradient, rtol=1e-9, atol=1e-12)
    assert parts.metrics == pytest.approx(whole.metrics, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
@given(case=cases(), data=st.data())
@settings(max_examples=20, deadline=None)
def test_row_keys_make_the_selection_independent_of_order_and_padding(
    name: str, case: Case, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(case))))
    keys = torch.arange(len(case)) + 100

    def select(part: Case, row_keys: Tensor | None) -> Tensor:
        columns = part.columns
        return get_policy_loss_fn(name).prepare(
            columns["log_prob"], columns["old_log_probs"], columns["advantages"], part.mask, CONFIG, 1, row_keys
        )

    for row_keys in (keys, None):
        plain = select(case, row_keys)
        moved = select(
            case.rows(order).padded(2, float("nan")), None if row_keys is None else row_keys[torch.tensor(order)]
        )
        assert torch.equal(moved[:, : case.mask.shape[1]], plain[torch.tensor(order)])
        assert not bool(moved[:, case.mask.shape[1] :].any())
