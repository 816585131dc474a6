"""Rows without an answer are told of wherever a reward would compare with it, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from podium.config import load_config
from podium.config.schema import Config
from podium.errors import DataError
from podium.models.load import load_tokenizer
from podium.trainer.main_ppo import make_dataset

FUNCTIONS = """
def verl(data_source, solution_str, ground_truth, extra_info): return 1.0
def other_names(source, text, truth, extra): return 1.0
def batch(data_sources, solution_strs, ground_truths, extra_infos): return [1.0] * len(solution_strs)
def can_do_without(data_source, solution_str, ground_truth=None, extra_info=None): return 1.0
def text_alone(solution_str): return 1.0
def trl(prompts, completions, answer, **columns): return [1.0] * len(completions)
"""
NOTHING: list[Any] = [None, "", "  ", [], {"target": []}, {"target": [""]}]


def config_of(tmp_path: Path, rows: list[dict[str, Any]], *words: str) -> Config:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    return load_config(None, [f"data.train_files={file}", f"trainer.default_local_dir={tmp_path / 'run'}", *words])


def kept(config: Config) -> list[Any]:
    dataset = make_dataset(config, load_tokenizer("builtin:tiny"), "train")
    return [dataset[place]["ground_truth"] for place in range(len(dataset))]


def gsm8k(answer: Any) -> dict[str, Any]:
    return {"prompt": "1+1=", "data_source": "gsm8k", "reward_model": {"ground_truth": answer}}


@pytest.mark.parametrize("nothing", NOTHING, ids=str)
def test_a_built_in_reward_makes_a_row_without_an_answer_a_bad_row(tmp_path: Path, nothing: Any) -> None:
    config = config_of(tmp_path, [gsm8k("2"), gsm8k(nothing), gsm8k("2"), gsm8k(nothing)])
    with pytest.raises(DataError, match=r"2 rows .*rows.jsonl, lines 2, 4: no answer in .*built-in reward gsm8k"):
        kept(config)
    config.data.max_bad_rows = 2
    assert kept(config) == ["2", "2"]


@pytest.mark.parametrize("answer", [0, False, "0", {"target": ["a"]}], ids=str)
def test_an_answer_that_looks_like_nothing_is_an_answer(tmp_path: Path, answer: Any) -> None:
    assert kept(config_of(tmp_path, [gsm8k(answer)])) == [answer]


@pytest.mark.parametrize("name", ["verl", "other_names", "batch"])
def test_an_own_function_that_takes_the_answer_makes_it_a_bad_row_too(tmp_path: Path, name: str) -> None:
    reward = f"reward.custom_reward_function={tmp_path}/mine.py:{name}"
    rows = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "1+2="}]
    with pytest.raises(DataError, match=rf"line 2: no answer.*mine.py:{name} compares.*ground_truth=None"):
        kept(config_of(tmp_path, rows, reward))


@pytest.mark.parametrize("name", ["can_do_without", "text_alone", "trl"])
def test_an_own_function_that_can_do_without_gets_every_row(tmp_path: Path, name: str) -> None:
    reward = f"reward.custom_reward_function={tmp_path}/mine.py:{name}"
    assert kept(config_of(tmp_path, [{"prompt": "1+1=", "answer": "2"}, {"prompt": "1+2="}], reward)) == ["2", None]


def test_a_file_without_any_answer_is_told_and_taken_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"prompt": "1+1="}, {"prompt": "1+2="}]
    assert kept(config_of(tmp_path, rows, f"reward.custom_reward_function={tmp_path}/mine.py:verl")) == [None, None]
    (said,) = caplog.messages
    assert "rows.jsonl: no answer" in said and "of any row" in said


@pytest.mark.parametrize("words", [
    ["reward.functions={format: 1.0}"],
    ["reward.functions={'http://127.0.0.1:9/score': 1.0}"],
    ["reward_model.enable=true", "reward_model.rule_weight=0"],
], ids=["format", "remote", "reward model"])  # fmt: skip
def test_nothing_is_asked_of_rows_that_no_answer_is_compared_with(tmp_path: Path, words: list[str]) -> None:
    assert kept(config_of(tmp_path, [gsm8k(None)], *words)) == [None]


def test_with_a_reward_model_rows_of_its_own_style_need_no_answer(tmp_path: Path) -> None:
    judged = {"prompt": "hi", "data_source": "gsm8k", "reward_model": {"style": "model"}}
    config = config_of(tmp_path, [gsm8k("2"), judged], "reward_model.enable=true", "reward_model.rule_weight=1")
    assert kept(config) == ["2", None]
