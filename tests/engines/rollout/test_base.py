from __future__ import annotations

from typing import Any

import pytest

from podium.engines.rollout.base import SamplingParams, StopReason, make_probe_tokens
from podium.errors import ConfigError


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": 0},
        {"temperature": -0.1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": 0},
        {"min_p": 1.0},
        {"stop": "</answer>"},
        {"stop": ("",)},
    ],
    ids=str,
)
def test_params_out_of_range_are_refused_by_name(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        SamplingParams(**({"max_tokens": 4} | bad))


def test_only_endings_by_the_model_or_its_environment_are_not_truncated() -> None:
    ended = {reason for reason in StopReason if not reason.is_truncated()}
    assert ended == {StopReason.EOS, StopReason.STOP, StopReason.ANSWERED, StopReason.DONE}


@pytest.mark.parametrize("vocab_size", [2, 100, 151_936])
def test_probe_tokens_are_fixed_and_inside_the_vocabulary(vocab_size: int) -> None:
    tokens = make_probe_tokens(vocab_size)
    assert tokens == make_probe_tokens(vocab_size)
    assert all(0 <= token < vocab_size for token in tokens)
    assert len(set(tokens)) == min(vocab_size, len(tokens))
