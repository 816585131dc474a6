"""Local copies of public data become rows that a run reads and its rewards score."""

from __future__ import annotations

import json

import pyarrow.parquet
import pytest

from podium.cli.main import main
from podium.config.schema import DataConfig
from podium.data.dataset import RLHFDataset
from podium.data.importers import import_rows
from podium.errors import ConfigError, DataError
from podium.rewards.registry import default_compute_score

FILES = {
    "gsm8k": {"question": "Ann has 3 and 4. How many?", "answer": "3+4=<<3+4=7>>7\n#### 1,007"},
    "math": {"problem": "Half of 1?", "solution": r"So $\boxed{\frac{1}{2}}$.", "level": "Level 1", "type": "Algebra"},
    "nq_search": {"question": "who wrote hamlet", "golden_answers": ["Shakespeare", "William Shakespeare"]},
    "jsonl": {"question": "1+1=", "answer": "2", "data_source": "addition"},
}
RIGHT = {"gsm8k": "#### 1007", "math": r"\boxed{0.5}", "nq_search": "<answer>shakespeare</answer>", "jsonl": "=2"}


@pytest.mark.parametrize("name", FILES)
def test_a_local_copy_becomes_rows_that_load_and_score(name, tmp_path, tokenizer, capsys):
    (tmp_path / "raw.jsonl").write_text(json.dumps(FILES[name]) + "\n" + json.dumps(FILES[name]) + "\n")
    out = tmp_path / "out" / "rows.parquet"
    assert main(["data", name, str(tmp_path / "raw.jsonl"), "--out", str(out), "--split", "val"]) == 0
    assert "2 rows written" in capsys.readouterr().out
    dataset = RLHFDataset([str(out)], tokenizer, DataConfig(max_prompt_length=4096))
    row = dataset[1]
    assert row["extra_info"]["split"] == "val" and row["extra_info"]["index"] == 1
    score = default_compute_score(row["data_source"], RIGHT[name], row["ground_truth"], row["extra_info"])
    assert (score["score"] if isinstance(score, dict) else score) == 1.0


def test_json_lists_parquet_and_folders_are_read(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([FILES["gsm8k"]] * 2))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([FILES["gsm8k"]] * 3), tmp_path / "b.parquet")
    assert len(list(import_rows("gsm8k", [str(tmp_path)], "train"))) == 5


def test_what_cannot_be_imported_is_named(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"question": "x"}\n')
    (tmp_path / "broken.jsonl").write_text('{"question": \n')
    for name, files, error, reason in [
        ("gsm8", [], ConfigError, "did you mean 'gsm8k'"),
        ("gsm8k", [], ConfigError, "name the local files"),
        ("gsm8k", ["absent.jsonl"], DataError, "there is no file"),
        ("gsm8k", [str(tmp_path / "bad.jsonl")], DataError, "no text in 'answer'"),
        ("gsm8k", [str(tmp_path / "broken.jsonl")], DataError, "not valid JSON"),
        ("math", [str(tmp_path / "bad.jsonl")], DataError, "no text in 'problem'"),
    ]:
        with pytest.raises(error, match=reason):
            list(import_rows(name, files, "train"))


def test_reasoning_gym_makes_rows_and_scores_them(tmp_path, tokenizer):
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    out = tmp_path / "legs.parquet"
    assert main(["data", "reasoning_gym:leg_counting", "--rows", "3", "--out", str(out)]) == 0
    row = RLHFDataset([str(out)], tokenizer, DataConfig(max_prompt_length=4096))[0]
    right = f"<think>hm</think><answer>{row['ground_truth']}</answer>"
    assert default_compute_score(row["data_source"], right, row["ground_truth"], row["extra_info"])["score"] == 1.0
    wrong = default_compute_score(row["data_source"], "<answer>-5</answer>", row["ground_truth"], row["extra_info"])
    assert wrong["score"] < 1.0
    train, val = (list(import_rows("reasoning_gym:leg_counting", [], split, 5)) for split in ("train", "val"))
    assert not {row["prompt"][0]["content"] for row in train} & {row["prompt"][0]["content"] for row in val}
