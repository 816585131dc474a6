"""The FLOP count is what torch itself counts."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from train_cases import make_model, make_plain

from podium.engines.train.flops import FlopsEstimate, estimate_flops, peak_flops
from podium.models.value import ValueModel


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_estimate_matches_torchs_counter(family: str) -> None:
    """One sequence; torch counts the whole score matrix, the estimate its causal half."""
    length = 24
    model = make_plain(family)
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, length, dtype=torch.long))
    estimate = estimate_flops(model)
    counted = counter.get_total_flops() - 2 * estimate.attention_width * length**2
    assert estimate.forward([length]) == pytest.approx(counted, rel=0.01)


def test_tied_and_untied_heads_count_the_same() -> None:
    tied, untied = (estimate_flops(make_plain("qwen2", tie_word_embeddings=tie)) for tie in (True, False))
    assert tied == untied and tied.head_weights == 97 * 32


def test_a_value_model_has_a_head_of_one_row() -> None:
    assert estimate_flops(ValueModel(make_model("qwen2").base_model)).head_weights == 32


def test_only_scored_tokens_meet_the_head_and_an_update_costs_three_passes() -> None:
    estimate = FlopsEstimate(block_weights=10, head_weights=100, attention_width=7)
    assert estimate.forward([2, 3], head_tokens=1) == 2 * (10 * 5 + 100 * 1 + 7 * (4 + 9))
    assert estimate.update([2, 3]) == 3 * estimate.forward([2, 3], head_tokens=5)


def test_cost_is_proportional_to_the_flops_of_a_sequence() -> None:
    estimate = estimate_flops(make_plain("llama"))
    ratio = estimate.forward([50]) / estimate.cost(50)
    assert estimate.forward([400]) / estimate.cost(400) == pytest.approx(ratio)


def test_the_peak_of_a_cpu_is_not_known() -> None:
    assert peak_flops("cpu") is None
