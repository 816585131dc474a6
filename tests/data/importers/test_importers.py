"""Local copies of public data become rows that a run reads and its rewards score."""

from __future__ import annotations

import json

import pyarrow.parquet
import pytest

from podium.cli.main import main
from podium.config.schema import DataConfig
from podium.config.schema_sft import ResponseDataConfig
from podium.data.dataset import RLHFDataset
from podium.data.importers import import_rows
from podium.data.responses import PairRows
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


def dump(uid, output, score, question="1+2="):
    return {"input": f"<|im_start|>user\n{question}", "output": output, "score": score, "uid": uid, "step": 0}


def test_better_and_worse_samples_of_a_prompt_become_pairs(tmp_path, tokenizer, capsys):
    samples = [
        dump("a", "3", 1.0),
        dump("a", "4", 0.0),
        dump("a", "4", 0.0),
        dump("a", "12", 0.0),
        dump("a", "5", None),
    ]
    samples += [dump("b", "3", 1.0), dump("b", "03", 1.0), dump("c", "7", 0.0)]
    (tmp_path / "0.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    out = tmp_path / "pairs.parquet"
    assert main(["data", "pairs", str(tmp_path / "0.jsonl"), "--out", str(out)]) == 0
    assert "2 rows written" in capsys.readouterr().out, "no pair of equal scores, of one sample, of an unscored one"
    rows = PairRows([str(out)], tokenizer, ResponseDataConfig(), "train")
    pairs = [rows.pair(number) for number in range(2)]
    decoded = {(tokenizer.decode(p.chosen.response), tokenizer.decode(p.rejected.response)) for p in pairs}
    assert decoded == {("3<|im_end|>", "12<|im_end|>"), ("3<|im_end|>", "4<|im_end|>")}
    assert tokenizer.decode(pairs[0].chosen.prompt) == "<|im_start|>user\n1+2=", "no second template around it"


def test_dumps_without_what_pairs_need_are_refused(tmp_path):
    (tmp_path / "0.jsonl").write_text(json.dumps({"input": "a", "output": "b", "uid": "c"}) + "\n")
    with pytest.raises(DataError, match=r"0\.jsonl, line 1: no score"):
        list(import_rows("pairs", [str(tmp_path / "0.jsonl")], "train"))


def test_tools_and_images_of_rows_are_kept(tmp_path):
    given = {"question": "rain?", "answer": "no", "tools": [{"name": "look"}], "images": [{"path": "a.png"}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(given) + "\n" + json.dumps(FILES["jsonl"]) + "\n")
    rows = list(import_rows("jsonl", [str(tmp_path / "a.jsonl")], "train"))
    assert rows[0]["tools"] == given["tools"] and rows[0]["images"] == given["images"]
    assert "tools" not in rows[1] and "images" not in rows[1]
