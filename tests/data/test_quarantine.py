"""Bad rows are left out with their reason, others take their place, and too many stop the run."""

from __future__ import annotations

import json

import pytest

from podium.config.schema import DataConfig
from podium.data.dataset import RLHFDataset
from podium.errors import DataError

BAD = {
    "no prompt": {"text": "hi"},
    "role and content": {"prompt": [{"role": "user"}]},
    "empty": {"prompt": ""},
    "reward_model must be an object": {"prompt": "hi", "reward_model": "rule"},
    "data_source must be text": {"prompt": "hi", "data_source": 3},
    "a JSON object was expected": [1, 2],
    "not valid JSON": '{"prompt": ',
}


@pytest.fixture
def file(tmp_path):
    lines = []
    for number, bad in enumerate(BAD.values()):
        lines += [json.dumps({"prompt": f"good {number}"}), bad if isinstance(bad, str) else json.dumps(bad)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def make(tokenizer, file, tmp_path, allowed):
    return RLHFDataset([file], tokenizer, DataConfig(max_bad_rows=allowed), quarantine=tmp_path / "quarantine.jsonl")


def notes(tmp_path):
    return [json.loads(line) for line in (tmp_path / "quarantine.jsonl").read_text().splitlines()]


def test_each_kind_of_bad_row_is_set_aside_with_file_row_and_reason(tokenizer, file, tmp_path):
    dataset = make(tokenizer, file, tmp_path, allowed=7)
    dataset.check_rows()
    assert [row["raw_prompt"][0]["content"] for row in dataset] == [f"good {i}" for i in range(7)]
    found = notes(tmp_path)
    assert [(note["file"], note["row"]) for note in found] == [(file, 2 * i + 2) for i in range(7)], "lines, from 1"
    for note, reason in zip(found, BAD, strict=True):
        assert reason in note["reason"]


def test_too_many_bad_rows_stop_the_run_and_say_how_to_go_on(tokenizer, file, tmp_path):
    with pytest.raises(
        DataError, match=r"7 rows .*data.max_bad_rows is 2: .*rows.jsonl, line 2: .*line 4: .*and 4 more .*raise"
    ):
        make(tokenizer, file, tmp_path, allowed=2).check_rows()
    assert len(notes(tmp_path)) == 7, "all that were looked at, so that they can be repaired at once"


def test_a_bad_row_that_is_drawn_is_replaced_by_the_next_good_one_every_time(tokenizer, file, tmp_path):
    dataset = make(tokenizer, file, tmp_path, allowed=7)
    texts = [row["raw_prompt"][0]["content"] for row in dataset.fetch([0, 1, 4])]
    assert texts == ["good 0", "good 1", "good 2"]
    assert [row["raw_prompt"][0]["content"] for row in dataset.fetch([1, 2])] == ["good 2", "good 1"]
    assert len(notes(tmp_path)) == 2, "row 1 and row 3, each once"


def test_a_resumed_run_does_not_write_a_row_twice(tokenizer, file, tmp_path):
    for _ in range(2):
        make(tokenizer, file, tmp_path, allowed=7).check_rows()
    assert len(notes(tmp_path)) == 7


def test_a_file_without_any_good_row_is_an_error(tokenizer, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text("{}\n{}\n")
    with pytest.raises(DataError, match="no train row can be used"):
        make(tokenizer, str(path), tmp_path, allowed=9).check_rows()


def test_a_bad_row_does_not_stop_a_run_that_allows_it(tokenizer, file, tmp_path):
    from podium.config import load_config
    from podium.tracking import read_metrics
    from podium.trainer.main_ppo import run_ppo

    reward = tmp_path / "mine.py"
    reward.write_text(
        "def f(data_source, solution_str, ground_truth, extra_info):\n    return float(len(solution_str))\n"
    )
    words = f"""data.train_files=[{file}] data.train_batch_size=4 data.max_response_length=4 data.max_bad_rows=7
    actor_rollout_ref.rollout.n=2 actor_rollout_ref.rollout.kv_cache_gb=0.1 trainer.total_training_steps=1
    trainer.save_freq=0 trainer.logger=[] trainer.default_local_dir={tmp_path / "run"} reward.num_processes=0
    reward.custom_reward_function={reward}:f""".split()
    assert run_ppo(load_config(None, words)) == 0
    assert len(read_metrics(tmp_path / "run")) == 1
    assert len((tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()) == 7
