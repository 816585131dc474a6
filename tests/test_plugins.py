"""Which name is suggested for one that is not known."""

from __future__ import annotations

from dataclasses import fields

import pytest

from podium import GRPOConfig, PPOConfig
from podium.plugins import closest, nearest

ARGUMENTS = sorted({field.name for kind in (PPOConfig, GRPOConfig) for field in fields(kind) if not field.metadata})


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("stop_tokn_id", "stop_token_id"),
        ("Learning_Rate", "learning_rate"),
        ("completion_length", "max_completion_length"),
        ("vf", "vf_coef"),
        ("accumulation_steps", "gradient_accumulation_steps"),
    ],
)
def test_a_slip_and_a_name_with_the_same_words_are_answered(given: str, known: str) -> None:
    assert closest(given, ARGUMENTS) == known


def test_a_shorter_name_is_found_in_a_longer_one_and_the_nearest_wins() -> None:
    assert closest("compute_score", ["score", "parse"]) == "score"
    assert closest("score", ["compute_score", "compute_score_of_rows"]) == "compute_score"
    assert closest("gea", ["grpo", "gae"]) == "gae"


@pytest.mark.parametrize(
    ("given", "noise"),
    [
        ("optim", "stop_token_id"),
        ("sync_ref_model", "trust_remote_code"),
        ("repetition_penalty", "max_completion_length"),
        ("deepspeed", "seed"),
        ("fsdp", "top_p"),
    ],
)
def test_a_name_that_only_shares_letters_is_not_suggested(given: str, noise: str) -> None:
    assert closest(given, [noise]) is None
    assert nearest(given, [noise]) == f". Allowed: {noise}"
