"""Built-in tasks: rows, splits, words in a config, and verifiers."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podium.data.tasks import TASKS, get_task, parse_task_word
from podium.data.tasks.countdown import parse_expression
from podium.errors import ConfigError, DataError

SETTINGS = [
    ("addition", {}),
    ("addition", {"digits": 1}),
    ("addition", {"digits": 3}),
    ("reverse", {}),
    ("countdown", {}),
    ("countdown", {"operators": "+-*", "numbers": 4}),
]


@pytest.mark.parametrize(("name", "options"), SETTINGS)
def test_train_and_validation_never_share_a_problem(name, options):
    task = get_task(name, **options)
    keys = {
        split: {problem.key for problem in itertools.islice(task.problems(split), 1000)} for split in ("train", "val")
    }
    assert keys["train"] and keys["val"]
    assert not keys["train"] & keys["val"]


def test_the_split_holds_across_seeds_and_options():
    validation = {p.key for p in get_task("addition").problems("val", seed=7)}
    training = {p.key for p in itertools.islice(get_task("addition", digits=3).problems("train", seed=8), 20_000)}
    assert validation and not validation & training


def test_turning_a_sum_round_does_not_move_it_to_the_other_split():
    train, val = (list(get_task("addition").problems(split)) for split in ("train", "val"))
    assert len(train) + len(val) == 100 * 100, "the two splits are all sums of two numbers below 100"

    def sums(problems):
        return {tuple(problem.question.rstrip("=").split("+")) for problem in problems}

    assert not {(b, a) for a, b in sums(train)} & sums(val)


@pytest.mark.parametrize("name", TASKS)
def test_rows_have_the_documented_columns_and_are_reproducible(name):
    task = get_task(name)
    rows = task.rows("val", 20, seed=3)
    assert rows == task.rows("val", 30, seed=3)[:20]
    assert rows != task.rows("val", 20, seed=4)
    row = rows[5]
    assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
    assert row["data_source"] == name
    assert row["prompt"][0]["role"] == "user"
    assert row["reward_model"]["style"] == "rule"
    assert (row["extra_info"]["split"], row["extra_info"]["index"]) == ("val", 5)
    assert len({row["prompt"][0]["content"] for row in rows}) == 20


@pytest.mark.parametrize(("name", "options"), SETTINGS)
def test_the_answer_of_every_row_is_right_and_another_rows_answer_is_wrong(name, options):
    task = get_task(name, **options)
    rows = task.rows("train", 30)
    for row, other in itertools.pairwise(rows):
        truth, answer = row["reward_model"]["ground_truth"], row["extra_info"]["answer"]
        assert score(task, answer, truth) == 1.0
        assert score(task, f" {answer}\n", truth) == 1.0
        assert score(task, answer + "1", truth) == 0.0
        assert score(task, "", truth) == 0.0
        if other["extra_info"]["answer"] != answer:
            assert score(task, other["extra_info"]["answer"], truth) == 0.0


def score(task, text, truth):
    result = task.compute_score(task.name, text, truth, None)
    return result["score"] if isinstance(result, dict) else result


def test_addition_reads_the_number_after_the_last_equals_sign():
    task = get_task("addition")
    assert task.score("27+58=85", "85") == 1.0
    assert task.score("85=75", "85") == 0.0
    assert task.score("about 85", "85") == 0.0


def test_asking_for_more_rows_than_there_are_problems_says_how_many_there_are():
    with pytest.raises(DataError, match=r"has \d+ different val problems, 500 were asked for"):
        get_task("addition", digits=1).rows("val", 500)


@pytest.mark.parametrize(
    ("text", "valid", "right"),
    [
        ("3+9+2", 1, 1),
        ("(9 - 2) + 3", 1, 0),
        ("2+3+9", 1, 1),
        ("9*2-3", 1, 0),
        ("14", 0, 0),
        ("3+9+2+0", 0, 0),
        ("3+9", 0, 0),
        ("3+9+2 ", 1, 1),
        ("39+2", 0, 0),
        ("3+9+2=14", 0, 0),
        ("-3+9+2", 0, 0),
        ("__import__('os').getcwd()", 0, 0),
        ("3**9+2", 0, 0),
        ("(3+9+2", 0, 0),
        ("3+9+2)", 0, 0),
        ("٣+9+2", 0, 0),
        ("(" * 5000, 0, 0),
        ("9" * 5000, 0, 0),
    ],
)
def test_countdown_accepts_only_expressions_of_the_given_numbers(text, valid, right):
    result = get_task("countdown").score(text, {"target": 14, "numbers": [3, 9, 2]})
    assert result == {"score": right, "valid": valid}


EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map("".join), inner.map(lambda text: f"({text})")
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_the_parser_agrees_with_python_on_well_formed_expressions(text):
    if len(text) <= 120:
        assert parse_expression(text)[0] == eval(text, {"__builtins__": {}})


@given(st.text(alphabet="0123456789+-*() x", max_size=60))
def test_the_parser_returns_or_raises_value_error_on_any_text(text):
    with contextlib.suppress(ValueError):
        parse_expression(text)


def test_a_task_word_sets_options_rows_and_seed():
    word = parse_task_word("task:addition?digits=3&rows=12&seed=5")
    assert (word.task, word.rows, word.seed) == (get_task("addition", digits=3), 12, 5)
    assert len(word.make_rows("train")) == 12
    assert parse_task_word("task:countdown?operators=+*").task == get_task("countdown", operators="+*")
    assert len(parse_task_word("task:reverse").make_rows("train")) == 4096
    assert len(parse_task_word("task:reverse").make_rows("val")) == 256


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("task:adition", "did you mean 'addition'"),
        ("task:nothing", "known: addition, countdown, reverse"),
        ("task:addition?digit=2", "did you mean 'digits'"),
        ("task:addition?digits", "not option=value"),
        ("task:addition?digits=two", "must be a whole number, not 'two'"),
        ("task:addition?digits=0", "outside 1 to 18"),
        ("task:addition?rows=0", "at least 1"),
        ("task:countdown?operators=/", "may hold"),
        ("task:countdown?operators=-", "needs + or"),
        ("task:countdown?numbers=1", "outside 2 to 8"),
        ("task:countdown?largest=0", "at least 1"),
        ("task:reverse?min_letters=6", "1 <= min_letters <= max_letters"),
    ],
)
def test_a_wrong_task_word_is_refused_with_a_hint(word, message):
    with pytest.raises(ConfigError, match=message.replace("+", r"\+")):
        parse_task_word(word)


def test_an_unknown_option_of_get_task_is_refused():
    with pytest.raises(ConfigError, match="no option 'digts'; did you mean 'digits'"):
        get_task("addition", digts=2)
