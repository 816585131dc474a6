"""Every form of reward function is recognized, and several are one weighted sum."""

from __future__ import annotations

import pytest

from podium.config.schema import RewardConfig
from podium.errors import ConfigError
from podium.rewards.records import failed
from podium.rewards.registry import check_sources, load_functions, make_spec


def scores(scorer, rows):
    return [future.result(timeout=300).values.get("score") for future in scorer.submit(rows)]


def test_trl_functions_get_texts_and_columns_and_may_leave_a_row_out(scorer, rows):
    assert scores(scorer("trl"), rows("ab", "skip", "abc")) == [3.0, None, 4.0]


def test_trl_functions_get_messages_where_the_prompt_is_a_conversation(scorer, rows):
    chat = rows("x", prompt=[{"role": "user", "content": "hi"}])
    assert scores(scorer("trl_chat"), chat) == [1.0]


def test_async_functions_of_either_form_run(scorer, rows):
    assert scores(scorer("verl_async"), rows("a", "b")) == [1.0, 1.0]
    assert scores(scorer("trl_async"), rows("a", "b")) == [0.5, 0.5]


def test_an_async_call_that_hangs_costs_its_row_alone(scorer, rows):
    got = [future.result(300) for future in scorer("verl_async", timeout_s=5.0).submit(rows("a", "hang", "b"))]
    assert [o.status for o in got] == ["ok", "timeout", "ok"]


def test_verls_batch_form_and_keyword_arguments(scorer, rows):
    assert scores(scorer("verl_batch", kwargs={"bonus": 0.5}), rows("ab", "c")) == [2.5, 1.5]
    assert scores(scorer("with_kwargs", kwargs={"scale": 3.0, "unused": 1}), rows("ab")) == [6.0]


def test_a_function_with_other_parameter_names_is_called_in_verls_order(scorer, rows):
    assert scores(scorer("other_names"), rows("a", "b", ground_truth="b")) == [0.0, 1.0]


def test_a_batch_function_that_returns_too_few_scores_fails(scorer, rows):
    got = [future.result(300) for future in scorer("trl_short").submit(rows("a", "b"))]
    assert [o.status for o in got] == ["error", "error"] and "1 scores for 2 responses" in got[0].reason


def test_several_functions_are_a_weighted_sum_and_each_is_kept(functions, rows):
    weights = {f"{functions}:one": 2.0, f"{functions}:trl": 0.5, "format": 1.0}
    made = load_functions(make_spec(RewardConfig(functions=weights)))
    got = dict(made.score(rows("ab", "skip")))
    assert got[0].values == {"score": 2.0 + 0.5 * 3.0, "one": 1.0, "trl": 3.0, "think_answer": 0.0} or got[0].values[
        "score"
    ] == pytest.approx(3.5)
    assert got[1].values["score"] == 2.0 and "trl" not in got[1].values, "what does not apply is left out of the sum"


def test_one_failing_function_leaves_the_row_unscored(functions, rows):
    made = load_functions(make_spec(RewardConfig(functions={f"{functions}:one": 1.0, f"{functions}:behave": 1.0})))
    (_, outcome), *_ = made.score(rows("raise"))
    assert outcome.status == "error" and outcome.reason.startswith("behave")


def test_unknown_functions_and_sources_are_named_before_training(functions):
    with pytest.raises(ConfigError, match="did you mean 'qa_em'"):
        check_sources(RewardConfig(functions={"qa_ems": 1.0}), set())
    with pytest.raises(ConfigError, match="no built-in reward for data_source 'mine'"):
        check_sources(RewardConfig(), {"mine"})
    check_sources(RewardConfig(functions={f"{functions}:one": 1.0}), {"mine"})
    check_sources(RewardConfig(), {"openai/gsm8k", "HuggingFaceH4/MATH-500", "nq", "addition", "code"})


def test_a_failure_names_the_line_of_the_users_code() -> None:
    def mine() -> float:
        return 1 / 0

    try:
        mine()
    except ZeroDivisionError as error:
        reason = failed("mine", error).reason
    assert reason.startswith("mine: ZeroDivisionError: division by zero (test_calling.py:") and reason.endswith(
        " in mine)"
    )
    assert failed("mine", ValueError("raised nowhere")).reason == "mine: ValueError: raised nowhere"
