"""Large files stay on disk: the same rows, whichever way they are read."""

from __future__ import annotations

import json

import pyarrow
import pyarrow.parquet
import pytest
from pyarrow import ipc

from podium.config.schema import DataConfig
from podium.data import arrow
from podium.data.dataset import RLHFDataset
from podium.errors import DataError

ROWS = [{"prompt": f"question {i}", "reward_model": {"style": "rule", "ground_truth": str(i)}} for i in range(10_000)]


@pytest.fixture
def parquet(tmp_path):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet", row_group_size=3000)
    return tmp_path / "rows.parquet"


def test_a_large_parquet_file_is_mapped_from_a_cache_made_once(tokenizer, parquet, monkeypatch):
    monkeypatch.setattr(arrow, "IN_MEMORY_BYTES", 0)
    for _ in range(2):
        dataset = RLHFDataset([str(parquet)], tokenizer, DataConfig())
        assert len(dataset) == 10_000
        for row in (0, 2999, 3000, 4095, 4096, 9999):
            assert dataset[row]["ground_truth"] == str(row)
        (cached,) = (parquet.parent / ".podium_cache").glob("*.arrow")
        monkeypatch.setattr(arrow, "_convert", lambda *_: pytest.fail("the cache was there"))
    assert not list(cached.parent.glob(".*.arrow.*"))


def test_a_changed_file_gets_a_new_cache(parquet):
    before = arrow.cache_path(parquet, "")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS[:10]), parquet)
    assert arrow.cache_path(parquet, "") != before


def test_the_cache_can_be_elsewhere(parquet, tmp_path):
    assert arrow.cache_path(parquet, str(tmp_path / "cache")).parent == tmp_path / "cache"


def test_folders_of_the_datasets_library_load_by_split(tokenizer, tmp_path):
    for split, rows in {"train": ROWS[:5], "test": ROWS[5:8]}.items():
        folder = tmp_path / "saved" / split
        folder.mkdir(parents=True)
        table = pyarrow.Table.from_pylist(rows)
        with (folder / "data-00000-of-00001.arrow").open("wb") as file, ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (tmp_path / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    train = RLHFDataset([str(tmp_path / "saved")], tokenizer, DataConfig(), "train")
    val = RLHFDataset([str(tmp_path / "saved")], tokenizer, DataConfig(), "val")
    alone = RLHFDataset([str(tmp_path / "saved" / "test")], tokenizer, DataConfig(), "train")
    assert [row["ground_truth"] for row in train] == list("01234")
    assert [row["ground_truth"] for row in val] == [row["ground_truth"] for row in alone] == list("567")
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match=r"no state\.json"):
        RLHFDataset([str(tmp_path / "other")], tokenizer, DataConfig())


def test_dropping_long_prompts_of_a_long_file_happens_as_they_are_drawn(tokenizer, tmp_path, monkeypatch):
    from podium.data import dataset as module

    monkeypatch.setattr(module, "LOOK_AHEAD_ROWS", 2)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("one", "long " * 50, "two", "three")))
    dataset = RLHFDataset([str(path)], tokenizer, DataConfig(max_prompt_length=30, overlong_prompts="drop"))
    assert len(dataset) == 4 and dataset.num_dropped == 0
    assert [row["raw_prompt"][0]["content"] for row in dataset.fetch([0, 1])] == ["one", "two"]
    assert dataset.num_dropped == 1
