"""A reward that fails is told by the file and line of its row, and the same failure not again and again."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from podium.errors import RewardError
from podium.protocol import DataProto
from podium.rewards.manager import RewardManager


class Letters:
    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, ids))


class Lines:
    """A dataset whose ids are the lines of a file."""

    def place_of(self, uid: str) -> str | None:
        return f"rows.jsonl, line {uid}" if uid.isdecimal() else None


def answers(texts: str, uids: list[str]) -> DataProto:
    ids = torch.tensor([[ord(letter)] for letter in texts])
    columns = {"uid": uids, "data_source": ["mine"] * len(uids), "ground_truth": ["5"] * len(uids)}
    return DataProto.from_dict(
        {"responses": ids, "attention_mask": torch.ones_like(ids)}, columns | {"extra_info": [{}] * len(uids)}
    )


def picky(solution_str: str, extra_info: Any) -> float:
    if solution_str == "k":
        raise KeyError("divisor")
    return 1.0 / int(solution_str)


@pytest.fixture
def manager() -> RewardManager:
    made = RewardManager(Letters(), picky, max_failure_rate=1.0)
    made.datasets = [Lines()]
    return made


def test_a_failed_reward_names_the_file_and_line_of_its_row(manager: RewardManager, caplog: Any) -> None:
    manager(answers("12a", ["7", "8", "9"]))
    (said,) = caplog.messages
    assert said.startswith("reward failed on rows.jsonl, line 9 (mine): picky: ValueError: invalid literal")
    manager.max_failure_rate = 0.1
    with pytest.raises(RewardError, match=r"the first was on rows.jsonl, line 4 \(mine\): picky: ZeroDivisionError"):
        manager(answers("0", ["4"]))


def test_a_row_of_nowhere_is_named_by_its_id(manager: RewardManager, caplog: Any) -> None:
    manager(answers("a", ["generated"]))
    assert "on row generated (mine)" in caplog.text


def test_the_same_failure_is_told_once_with_a_count(manager: RewardManager, caplog: Any) -> None:
    manager(answers("abk0", ["1", "2", "3", "4"]))
    first, second, third = caplog.messages
    assert first.startswith("reward failed 2 times, first on rows.jsonl, line 1")
    assert "KeyError" in second and "ZeroDivisionError" in third


def test_a_failure_that_goes_on_is_told_again_when_there_are_many_more(
    manager: RewardManager, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for step in range(10):
        manager(answers("a1", [str(10 + step), "1"]))
    first, later = caplog.messages
    assert first.startswith("reward failed on rows.jsonl, line 10 ")
    assert later.startswith("reward failed 10 times so far, this time on rows.jsonl, line 19 ")
