from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from podium.engines.rollout.base import SamplingParams
from podium.engines.rollout.native.gpu.rules import RuleTable
from podium.engines.rollout.native.slots import Slots
from podium.engines.rollout.request import Request, Watched
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


def test_rows_of_rules_that_nobody_uses_are_used_again(text_tokenizer: PreTrainedTokenizerFast) -> None:
    rules = StopRules(100, (7,), text_tokenizer, num_rows=4)
    kept = rules.index_of(SamplingParams(max_tokens=1, stop=("kept",)))
    for number in range(50):
        row = rules.index_of(SamplingParams(max_tokens=1, stop=(f"user {number}:",)), in_use=lambda: [kept])
        assert row != kept and rules.tail_tokens(row) == len(f"user {number}:") + 8
    assert len(rules.table) == 4, "it does not grow with what it has seen"
    assert rules.index_of(SamplingParams(max_tokens=1, stop=("kept",))) == kept


def test_the_rule_that_was_used_last_stays_the_longest(text_tokenizer: PreTrainedTokenizerFast) -> None:
    rules = StopRules(100, (7,), text_tokenizer, num_rows=2)
    params = {word: SamplingParams(max_tokens=1, stop=(word,)) for word in "xyz"}
    first, second = rules.index_of(params["x"]), rules.index_of(params["y"])
    rules.index_of(params["x"])
    assert rules.index_of(params["z"]) == second and rules.index_of(params["x"]) == first


def test_the_table_grows_when_all_of_it_is_in_use_and_keeps_its_rows(text_tokenizer: PreTrainedTokenizerFast) -> None:
    rules = StopRules(100, (7,), text_tokenizer, num_rows=2)
    rows: list[int] = []
    for token in range(20, 25):
        rows.append(rules.index_of(SamplingParams(max_tokens=1, stop_token_ids=(token,)), in_use=lambda: rows))
    assert rows == [0, 1, 2, 3, 4] and len(rules.table) == 8
    assert [int(rules.table[row, token]) for row, token in zip(rows, range(20, 25), strict=True)] == [IS_STOP] * 5


def test_a_copy_of_the_table_that_follows_its_writes_is_the_table(text_tokenizer: PreTrainedTokenizerFast) -> None:
    """As the GPU's is: rows that were written since, and all of them when it grew."""
    rules = StopRules(100, (7,), text_tokenizer, num_rows=2)
    copy = RuleTable(100, torch.device("cpu"), num_rows=2)
    moves, used = [], list[int]()
    for token in (20, 21, 22, 23, 24, 25):
        used.append(rules.index_of(SamplingParams(max_tokens=1, stop_token_ids=(token,)), in_use=lambda: used[-3:]))
        before = copy.data
        moves.append(copy.follow(rules))
        assert (copy.data is not before) == moves[-1], "a graph must know when what it reads has moved"
        assert np.array_equal(copy.data.numpy(), rules.table)
        assert copy.follow(rules) is False
    assert moves == [False, False, True, False, False, False] and len(set(used)) == 4


def test_a_running_request_keeps_its_rule_while_others_come_and_go(text_tokenizer: PreTrainedTokenizerFast) -> None:
    rules = StopRules(100, (7,), text_tokenizer, num_rows=2)
    slots = Slots(2, rules)
    watched = Watched(lambda: None, lambda request: None)

    def place(slot: int, token: int) -> None:
        params = SamplingParams(max_tokens=9, stop_token_ids=(token,))
        slots.place(np.array([slot]), [Request(watched, np.array([1]), params, 0, 0)], version=0)

    place(0, 50)
    for token in range(60, 70):
        place(1, token)
        none = np.zeros((2, 1), dtype=np.float32)
        ended = slots.record(np.array([0, 1]), np.array([[token], [token]]), none, none)
        assert [(slot, written.stop_reason) for slot, written in ended] == [(1, "stop")]
        slots.num_written[0] = 0
        slots.clear(1)
    assert len(rules.table) == 2
