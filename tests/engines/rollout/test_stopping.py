from __future__ import annotations

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from podium.engines.rollout.base import SamplingParams
from podium.engines.rollout.stopping import GOES_ON, IS_EOS, IS_STOP, MAY_COMPLETE, StopRules


@pytest.fixture
def rules(text_tokenizer: PreTrainedTokenizerFast) -> StopRules:
    return StopRules(100, (7, 8), text_tokenizer)


def meaning(rules: StopRules, params: SamplingParams, token: int) -> int:
    index = rules.index_of(params)
    return int(rules.table[index, token])


def test_end_tokens_and_stop_tokens_are_told_apart(rules: StopRules) -> None:
    params = SamplingParams(max_tokens=1, stop_token_ids=(8, 9))
    assert [meaning(rules, params, token) for token in (6, 7, 8, 9)] == [GOES_ON, IS_EOS, IS_EOS, IS_STOP]
    ignoring = SamplingParams(max_tokens=1, stop_token_ids=(8, 9), ignore_eos=True)
    assert [meaning(rules, ignoring, token) for token in (6, 7, 8, 9)] == [GOES_ON, GOES_ON, IS_STOP, IS_STOP]


def test_equal_conditions_are_one_rule(rules: StopRules) -> None:
    first = rules.index_of(SamplingParams(max_tokens=1, stop=("x",)))
    assert rules.index_of(SamplingParams(max_tokens=9, temperature=0.5, stop=("x",))) == first
    assert rules.index_of(SamplingParams(max_tokens=1, stop=("y",))) != first


def test_only_tokens_with_the_last_character_are_looked_at(
    rules: StopRules, text_tokenizer: PreTrainedTokenizerFast
) -> None:
    params = SamplingParams(max_tokens=1, stop=("</answer>",))
    vocab = text_tokenizer.get_vocab()
    looked_at = {token for token, i in vocab.items() if meaning(rules, params, i) == MAY_COMPLETE}
    assert looked_at == {token for token in vocab if ">" in token}


@pytest.mark.parametrize("stop", ["end\n", "fin ", "да", "終"])
def test_where_a_token_alone_does_not_tell_every_token_is_looked_at(rules: StopRules, stop: str) -> None:
    index = rules.index_of(SamplingParams(max_tokens=1, stop=(stop,), ignore_eos=True))
    assert (rules.table[index] == MAY_COMPLETE).all()


def test_a_stop_string_may_begin_and_end_inside_tokens(
    rules: StopRules, text_tokenizer: PreTrainedTokenizerFast
) -> None:
    vocab = text_tokenizer.get_vocab()
    index = rules.index_of(SamplingParams(max_tokens=1, stop=("b></a",)))
    ids = np.array([vocab[piece] for piece in ("ab", "></", "abc")])
    assert rules.completes(index, ids)
    assert not rules.completes(index, ids[:2])
    assert rules.tail_tokens(index) >= len("b></a")
