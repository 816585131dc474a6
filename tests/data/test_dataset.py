"""RLHFDataset over tasks, parquet and jsonl; collation."""

from __future__ import annotations

import copy
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from podium.config.schema import DataConfig
from podium.data.dataset import RLHFDataset, collate_fn, validation_files
from podium.errors import ConfigError, DataError
from podium.protocol import DataProto

VERL_ROW = {
    "data_source": "sums",
    "prompt": [{"role": "user", "content": "1+2="}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "3"},
    "extra_info": {"split": "train", "index": 0},
}


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_parquet(path, rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def prompt_text(dataset, index):
    return dataset.tokenizer.decode(dataset[index]["input_ids"])


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_a_verl_row_keeps_its_columns(tokenizer, tmp_path, write):
    file = write(tmp_path / f"rows.{write.__name__.removeprefix('write_')}", [VERL_ROW] * 3)
    dataset = RLHFDataset([file], tokenizer, DataConfig())
    assert len(dataset) == 3
    row = dataset[1]
    columns = {"raw_prompt", "is_conversation", "data_source", "reward_model", "ground_truth", "extra_info", "uid"}
    assert set(row) == {"input_ids"} | columns
    assert row["data_source"] == "sums" and row["ground_truth"] == "3"
    assert row["raw_prompt"] == VERL_ROW["prompt"]
    assert row["reward_model"] == {"style": "rule", "ground_truth": "3"}
    assert row["extra_info"] == {"split": "train", "index": 0, "ability": "math"}
    assert prompt_text(dataset, 1) == "<|im_start|>user\n1+2=<|im_end|>\n<|im_start|>assistant\n"


def test_free_columns_and_question_answer_pairs_load(tokenizer, tmp_path):
    trl = write_jsonl(tmp_path / "trl.jsonl", [{"prompt": "say hi", "solution": "hi", "level": 2}])
    bare = write_jsonl(tmp_path / "bare.jsonl", [{"question": "1+1=", "answer": "2"}])
    search = write_jsonl(tmp_path / "nq.jsonl", [VERL_ROW | {"reward_model": {"ground_truth": {"target": ["a", "b"]}}}])
    rows = [dict(row) for row in RLHFDataset([trl, bare, search], tokenizer, DataConfig())]
    assert [row["data_source"] for row in rows] == ["trl", "bare", "sums"]
    assert rows[0]["extra_info"] == {"solution": "hi", "level": 2} and rows[0]["ground_truth"] is None
    assert rows[1]["raw_prompt"] == [{"role": "user", "content": "1+1="}]
    assert rows[1]["reward_model"] == {"style": "rule", "ground_truth": "2"}
    assert rows[2]["ground_truth"] == {"target": ["a", "b"]}


def test_the_prompt_column_and_the_system_prompt_can_be_set(tokenizer, tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": "hi", "prompt": "not this"}])
    dataset = RLHFDataset([file], tokenizer, DataConfig(prompt_key="text", system_prompt="be brief"))
    assert prompt_text(dataset, 0).startswith("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>")


def test_tasks_and_files_can_be_mixed_and_indexed_from_the_end(tokenizer, tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "one"}, {"prompt": "two"}])
    dataset = RLHFDataset(["task:addition?rows=5", file, "task:reverse?rows=4"], tokenizer, DataConfig())
    assert len(dataset) == 11
    assert [row["data_source"] for row in dataset] == ["addition"] * 5 + ["a"] * 2 + ["reverse"] * 4
    assert dataset[-1]["uid"] == dataset[10]["uid"]
    with pytest.raises(IndexError):
        dataset[11]


def test_uids_are_reproducible_and_never_shared(tokenizer, tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "one"}, {"prompt": "two"}])
    train = RLHFDataset([file, file, "task:addition?rows=8"], tokenizer, DataConfig(), "train")
    val = RLHFDataset([file, file, "task:addition?rows=8"], tokenizer, DataConfig(), "val")
    uids = [row["uid"] for dataset in (train, val) for row in dataset]
    assert len(set(uids)) == len(uids) == 24
    again = RLHFDataset([file, file, "task:addition?rows=8"], tokenizer, DataConfig(), "train")
    assert [row["uid"] for row in again] == uids[:12]


def test_uids_do_not_depend_on_where_a_file_lies(tokenizer, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    rows = [{"prompt": "one"}, {"prompt": "two"}]
    files = [write_jsonl(folder / "a.jsonl", rows) for folder in (tmp_path, tmp_path / "elsewhere")]
    here, there = ([row["uid"] for row in RLHFDataset([file], tokenizer, DataConfig(), "train")] for file in files)
    assert here == there


def test_a_uid_belongs_to_the_row_also_when_others_are_dropped(tokenizer, tmp_path):
    rows = [{"prompt": "long " * 20}, {"prompt": "short"}]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    everything = RLHFDataset([file], tokenizer, DataConfig())
    dropped = RLHFDataset([file], tokenizer, DataConfig(max_prompt_length=30, overlong_prompts="drop"))
    assert dropped[0]["uid"] == everything[1]["uid"]


def test_the_length_policy_is_applied_and_counted(tokenizer, tmp_path):
    overhead = 6  # tokens of the chat template around one user message
    file = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "x" * length} for length in (9, 10, 11)])
    limit = overhead + 10

    def make(policy):
        return RLHFDataset([file], tokenizer, DataConfig(max_prompt_length=limit, overlong_prompts=policy))

    dropped = make("drop")
    assert [len(row["input_ids"]) for row in dropped] == [limit - 1, limit] and dropped.num_dropped == 1
    cut = make("truncate_left")
    assert [len(row["input_ids"]) for row in cut] == [limit - 1, limit, limit]
    assert cut[2]["input_ids"][-4:] == cut[1]["input_ids"][-4:] and cut.num_truncated == 1
    strict = make("error")
    assert len(strict[1]["input_ids"]) == limit
    with pytest.raises(DataError, match=r"a\.jsonl, line 3: the prompt has 17 tokens, data.max_prompt_length .*is 16"):
        strict[2]


def test_dropping_every_row_is_an_error(tokenizer):
    with pytest.raises(DataError, match="all 4 train prompts have more than 3 tokens"):
        RLHFDataset(["task:addition?rows=4"], tokenizer, DataConfig(max_prompt_length=3, overlong_prompts="drop"))


def test_only_so_many_rows_are_used_and_always_the_same_ones(tokenizer):
    config = DataConfig(train_data_num=6, val_data_num=3)
    words = ["task:addition?rows=50", "task:reverse?rows=50"]
    train = RLHFDataset(words, tokenizer, config, "train")
    assert (len(train), len(RLHFDataset(words, tokenizer, config, "val"))) == (6, 3)
    assert [row["uid"] for row in train] == [row["uid"] for row in RLHFDataset(words, tokenizer, config, "train")]
    with pytest.raises(DataError, match="train_data_num is 0"):
        RLHFDataset(words, tokenizer, DataConfig(train_data_num=0))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": "hi"}, r"no prompt: neither 'prompt' nor 'question' among the columns \['text'\]"),
        ({"prompt": [{"role": "user"}]}, "role and content"),
        ({"prompt": ""}, "empty"),
        ({"prompt": "hi", "reward_model": "rule"}, "reward_model must be an object"),
        ({"prompt": "hi", "extra_info": [1]}, "extra_info must be an object"),
        ({"prompt": "hi", "data_source": 3}, "data_source must be text"),
        ({"prompt": "hi", "images": ["a.png"]}, "no processor for them"),
    ],
)
def test_a_bad_row_is_named_with_file_row_and_reason(tokenizer, tmp_path, row, reason):
    file = write_jsonl(tmp_path / "bad.jsonl", [{"prompt": "fine"}, row])
    dataset = RLHFDataset([file], tokenizer, DataConfig())
    assert dataset[0]["raw_prompt"][0]["content"] == "fine"
    with pytest.raises(DataError, match=rf"bad\.jsonl, line 2: .*{reason}"):
        dataset[1]


def test_broken_json_names_its_line_as_an_editor_shows_it_and_blank_lines_are_no_rows(tokenizer, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "é one"}\n\n{"prompt": "two"}\n{"prompt": \n[1]')
    dataset = RLHFDataset([str(path)], tokenizer, DataConfig())
    assert len(dataset) == 4 and dataset[1]["raw_prompt"][0]["content"] == "two"
    with pytest.raises(DataError, match=r"a\.jsonl, line 4: not valid JSON \(expecting value at column 11\)"):
        dataset[2]
    with pytest.raises(DataError, match=r"a\.jsonl, line 5: a JSON object was expected, found list"):
        dataset[3]


def test_unusable_files_are_refused_when_the_dataset_is_made(tokenizer, tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "broken.parquet").write_text("not parquet")
    for word, reason in [
        (tmp_path / "none.jsonl", "does not exist"),
        (tmp_path / "rows.csv", "neither task:<name>, nor a file that ends in .parquet or .jsonl"),
        (tmp_path / "empty.jsonl", "has no rows"),
        (tmp_path / "broken.parquet", "cannot be read as parquet"),
    ]:
        with pytest.raises(DataError, match=reason):
            RLHFDataset([str(word)], tokenizer, DataConfig())
    with pytest.raises(DataError, match="the list of files is empty"):
        RLHFDataset([], tokenizer, DataConfig(), "val")


def test_validation_falls_back_to_the_validation_split_of_the_training_tasks():
    words = ["task:addition?digits=2&rows=5000", "mine.parquet", "task:reverse?rows=9"]
    assert validation_files(DataConfig(train_files=words)) == ["task:addition?digits=2", "task:reverse"]
    assert validation_files(DataConfig(train_files=words, val_files=["v.jsonl"])) == ["v.jsonl"]
    assert validation_files(DataConfig(train_files=["mine.parquet"])) == []


def test_a_batch_is_padded_on_the_left_to_its_own_width():
    rows = [
        {"input_ids": [5, 6, 7], "uid": "a", "raw_prompt": [{"x": 1}]},
        {"input_ids": [8], "uid": "b", "raw_prompt": [{"x": 2}]},
    ]
    batch = collate_fn(rows, pad_token_id=9)
    assert batch["input_ids"].tolist() == batch["prompts"].tolist() == [[5, 6, 7], [9, 9, 8]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    assert batch["position_ids"].tolist() == [[0, 1, 2], [0, 0, 0]]
    assert batch["raw_prompt"].dtype == object and batch["raw_prompt"].shape == (2,)
    assert batch["raw_prompt"][1] == [{"x": 2}]


def test_a_batch_becomes_a_dataproto(tokenizer):
    dataset = RLHFDataset(["task:addition?rows=6"], tokenizer, DataConfig())
    data = DataProto.from_single_dict(dataset.collate_fn([dataset[i] for i in range(6)]))
    assert len(data) == 6 and data.batch["prompts"].dtype == torch.long
    assert set(data.non_tensor_batch) == set(dataset[0]) - {"input_ids"}
    assert (data.batch["prompts"][data.batch["attention_mask"] == 0] == tokenizer.pad_token_id).all()
    assert isinstance(data.non_tensor_batch["uid"], np.ndarray)


def test_an_empty_batch_has_no_rows():
    assert collate_fn([])["input_ids"].shape == (0, 0)


def test_a_rows_tools_and_the_templates_arguments_are_in_its_prompt(tokenizer, tmp_path):
    copied = copy.deepcopy(tokenizer)
    copied.chat_template = (
        "{{ mood }}{% for tool in tools or [] %} {{ tool.name }}{% endfor %}: {{ messages[0].content }}"
    )
    rows = [{"prompt": "one", "tools": [{"name": "look"}, {"name": "ask"}]}, {"prompt": "two"}]
    config = DataConfig(apply_chat_template_kwargs={"mood": "calm"})
    dataset = RLHFDataset([write_jsonl(tmp_path / "a.jsonl", rows)], copied, config)
    assert [prompt_text(dataset, row) for row in (0, 1)] == ["calm look ask: one", "calm: two"]
    assert "tools" not in dataset[0]["extra_info"]


def test_a_split_of_a_task_can_be_asked_for(tokenizer):
    val = RLHFDataset(["task:addition?rows=8&split=train"], tokenizer, DataConfig(), "val")
    train = RLHFDataset(["task:addition?rows=8"], tokenizer, DataConfig(), "train")
    assert [row["raw_prompt"] for row in val] == [row["raw_prompt"] for row in train]
    with pytest.raises(ConfigError, match="split=test must be train or val"):
        RLHFDataset(["task:addition?split=test"], tokenizer, DataConfig())


def test_a_row_is_told_by_the_line_of_a_text_file_and_the_row_of_a_table_from_1(tokenizer, tmp_path):
    (tmp_path / "a.jsonl").write_text('\n{"prompt": "one"}\n\n\n{"prompt": "two"}\n')
    table = pyarrow.Table.from_pylist([{"prompt": "three"}, {"prompt": "four"}])
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    files = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.parquet"), "task:addition?rows=1"]
    dataset = RLHFDataset(files, tokenizer, DataConfig())
    places = [dataset.place_of(dataset.uid(row)) for row in range(5)]
    words = [(0, "line 2"), (0, "line 5"), (1, "row 1"), (1, "row 2"), (2, "row 1")]
    assert places == [f"{files[file]}, {number}" for file, number in words]
    assert dataset.place_of("of-somewhere-7") is None
