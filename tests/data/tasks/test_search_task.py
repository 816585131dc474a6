from __future__ import annotations

import pytest

from podium.data.tasks import get_task
from podium.data.tasks.search import world
from podium.errors import ConfigError


@pytest.mark.parametrize("hops", [1, 2])
def test_a_question_is_answered_by_following_its_titles(hops: int) -> None:
    pages = {page["title"]: page["text"] for page in get_task("search").corpus()}  # type: ignore[attr-defined]
    for row in get_task("search", hops=hops).rows("train", 200):
        truth = row["reward_model"]["ground_truth"]
        assert len(truth["titles"]) == hops
        question, answer = row["prompt"][0]["content"], truth["target"][0]
        assert truth["titles"][0] in question
        for title, following in zip(truth["titles"], [*truth["titles"][1:], answer], strict=True):
            assert following in pages[title]


def test_no_question_holds_its_answer_nor_the_second_title() -> None:
    for row in get_task("search").rows("val", 256):
        truth, question = row["reward_model"]["ground_truth"], row["prompt"][0]["content"]
        assert truth["target"][0] not in question and truth["titles"][1] not in question


def test_the_world_is_the_same_every_time_and_has_no_two_pages_of_one_title() -> None:
    rows = get_task("search").corpus()  # type: ignore[attr-defined]
    assert len({row["title"] for row in rows}) == len(rows) == 2 * 4096 + 400
    world.cache_clear()
    assert get_task("search").corpus() == rows  # type: ignore[attr-defined]


def test_guessing_is_hopeless() -> None:
    answers = [row["reward_model"]["ground_truth"]["target"][0] for row in get_task("search").rows("val", 256)]
    assert max(answers.count(answer) for answer in set(answers)) / len(answers) < 0.05


def test_only_an_answer_of_the_models_own_counts() -> None:
    task, truth = get_task("search"), {"target": ["Rome"], "titles": []}
    assert task.compute_score("search", "<answer> rome </answer>", truth) == {"score": 1.0, "answered": 1.0}
    shown = {"written": "<search> x </search>"}
    assert task.compute_score("search", "<search> x </search> <answer>Rome</answer>", truth, shown)["score"] == 0.0  # type: ignore[index]


def test_hops_are_one_two_or_both() -> None:
    lengths = {len(row["reward_model"]["ground_truth"]["titles"]) for row in get_task("search", hops=0).rows("val", 64)}
    assert lengths == {1, 2}
    with pytest.raises(ConfigError, match="hops=3"):
        get_task("search", hops=3)
