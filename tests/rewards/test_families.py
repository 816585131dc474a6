"""The built-in reward functions, family by family."""

from __future__ import annotations

import json

import pytest

from podium.data.text import last_boxed
from podium.rewards import choice, code, format, gsm8k, qa
from podium.rewards.registry import default_compute_score, function_of


@pytest.mark.parametrize(
    ("response", "truth", "strict", "flexible"),
    [
        ("so 3+4=7\n#### 7", "7", 1, 1),
        ("#### 1,234", "1234", 1, 1),
        ("#### $18.00", "18", 1, 1),
        ("The answer is 7.", "7", 0, 1),
        ("#### 8", "7", 0, 0),
        ("#### 7 and then 9", "7", 1, 0),
        ("#### -3", "-3", 1, 1),
        ("no number", "7", 0, 0),
        ("first #### 1 then #### 2", "2", 1, 1),
        ("#### 7", "long solution\n#### 7", 1, 1),
    ],
)
def test_gsm8k(response, truth, strict, flexible):
    assert gsm8k.compute_score("gsm8k", response, truth)["score"] == strict
    assert gsm8k.compute_score("gsm8k", response, truth, method="flexible")["score"] == flexible


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("B", "B"),
        ("(C)", "C"),
        ("D. the last one", "D"),
        ("The answer is (A).", "A"),
        ("First I thought the answer is B, but the correct answer is: **D**", "D"),
        ("reason \\boxed{C}", "C"),
        ("reason \\boxed{\\text{(B)}}", "B"),
        ("<answer> A </answer>", "A"),
        ("A bird in the hand", None),
        ("I think\nC", "C"),
        ("", None),
    ],
)
def test_multiple_choice_finds_the_letter(response, letter):
    assert choice.extract_choice(response) == letter


def test_multiple_choice_takes_letters_and_indices_as_truth():
    assert choice.compute_score("mmlu", "B", 1)["score"] == 1.0
    assert choice.compute_score("mmlu", "B", "b")["score"] == 1.0
    assert choice.compute_score("mmlu", "B", "A")["score"] == 0.0


GOOD = (
    "<think>t</think>\n<search>q</search>\n<information>Doc 1 Paris</information>\n<think>so</think><answer>{}</answer>"
)


def test_qa_em_reads_the_last_answer_normalized():
    truth = {"target": ["The Beatles", "Beatles, The"]}
    assert qa.qa_em("nq", "<answer>wrong</answer> <answer>the  beatles!</answer>", truth)["score"] == 1.0
    assert qa.qa_em("nq", "beatles", truth)["score"] == 0.0
    assert qa.qa_em("nq", "<answer>beatles band</answer>", truth)["score"] == 0.0
    assert qa.qa_subem("nq", "<answer>beatles band</answer>", {"target": "Beatles"})["score"] == 1.0
    with pytest.raises(ValueError, match="no 'target'"):
        qa.qa_em("nq", "<answer>x</answer>", {"answer": 1})


@pytest.mark.parametrize(
    ("response", "score"),
    [
        (GOOD.format("Paris"), 1.0),
        ("stray words " + GOOD.format("Paris"), 0.8),
        (GOOD.format("Rome"), 0.2 + 0.1),
        (GOOD.format("Rome").replace("Paris", "London"), 0.2),
        ("<answer>Rome</answer>", 0.1),
        ("<answer>Paris</answer>", 0.8),
        ("<think>hm</think>", 0.0),
        ("", 0.0),
    ],
)
def test_qa_em_format(response, score):
    got = qa.qa_em_format("nq", response, {"target": ["Paris"]}, retrieval_score=0.1)
    assert got["score"] == pytest.approx(score)


def test_the_order_of_tags_is_checked():
    assert qa.is_valid_sequence("<think>a</think><answer>b</answer>")
    for bad in (
        "<think>a<answer>b</answer>",
        "<answer>b</answer><think>a</think>",
        "<think>a</think><search>s</search><answer>b</answer>",
        "<think>a</think><answer>b</answer> more",
        "<answer>b</answer>",
    ):
        assert not qa.is_valid_sequence(bad), bad


def test_format_rewards():
    assert format.think_answer("", "<think>a</think> <answer>b</answer>", None) == 1.0
    assert format.think_answer("", "<think>a</think> <answer>b</answer> c", None) == 0.0
    assert format.boxed("", "so \\boxed{3}", None) == 1.0 and format.boxed("", "3", None) == 0.0


def test_the_last_closed_box_is_taken():
    assert last_boxed(r"\boxed{1} and \boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert last_boxed(r"\boxed{1} and \boxed{2") == "1"
    assert last_boxed("none") is None


FENCE = "Here:\n```python\n{}\n```"


@pytest.mark.parametrize(
    ("program", "truth", "score", "passed"),
    [
        ("print(int(input())+1)", {"inputs": ["1", "5"], "outputs": ["2", "6\n"]}, 1.0, 1.0),
        ("print(2)", {"inputs": ["1", "5"], "outputs": ["2", "6"]}, 0.0, 0.5),
        ("print(int(input())+1)", json.dumps({"inputs": ["1"], "outputs": ["2"]}), 1.0, 1.0),
        ("def f(x): return x", ["assert f(1) == 1", "assert f(2) == 2"], 1.0, 1.0),
        ("def f(x): return 1", "assert f(2) == 2", 0.0, 0.0),
        ("import sys; sys.exit(0)", ["assert False"], 0.0, 0.0),
        ("import sys; sys.exit(1)", {"inputs": [""], "outputs": [""]}, 0.0, 0.0),
    ],
)
def test_code_is_scored_by_its_tests(program, truth, score, passed):
    got = code.compute_score("code", FENCE.format(program), truth, test_timeout_s=120.0)
    assert (got["score"], got["passed"]) == (score, passed)


def test_partial_credit_for_code_is_optional_and_no_block_is_zero():
    truth = {"inputs": ["1", "5"], "outputs": ["2", "6"]}
    assert (
        code.compute_score("code", FENCE.format("print(2)"), truth, continuous=True, test_timeout_s=120.0)["score"]
        == 0.5
    )
    assert code.compute_score("code", "print(2)", truth)["score"] == 0.0
    with pytest.raises(ValueError, match="ground truth of a code row"):
        code.compute_score("code", FENCE.format("1"), 7)


@pytest.mark.parametrize(
    ("source", "function"),
    [
        ("openai/gsm8k", "gsm8k"),
        ("lighteval/MATH", "math"),
        ("DigitalLearningGmbH/MATH-lighteval", "math"),
        ("aime2024", "math"),
        ("hotpotqa", "qa_em"),
        ("searchR1_nq", "qa_em"),
        ("mmlu_pro", "multiple_choice"),
        ("taco", "code"),
        ("reasoning_gym:leg_counting", "reasoning_gym"),
        ("addition", "task:addition"),
        ("mine", None),
    ],
)
def test_each_data_source_has_its_function(source, function):
    assert function_of(source) == function


def test_the_default_function_goes_by_data_source():
    assert default_compute_score("gsm8k", "#### 4", "4")["score"] == 1.0
    assert default_compute_score("math", "\\boxed{\\frac12}", "0.5")["score"] == 1.0
    assert default_compute_score("addition", "=7", "7") == 1.0
