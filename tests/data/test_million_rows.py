"""A start does not grow with the file: a million rows against a thousand, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

START = """
import json, sys, time
import torch
from podium.config.schema import Config
from podium.data.mixing import make_sampler
from podium.models.load import load_tokenizer
from podium.trainer.main_ppo import data_sources, make_dataset

def resident_mb():
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmRSS"))

tokenizer = load_tokenizer("builtin:tiny")
config = Config()
config.data.train_files, config.data.max_prompt_length = [sys.argv[1]], 2048
config.trainer.default_local_dir = sys.argv[2]
start = time.perf_counter()
dataset = make_dataset(config, tokenizer, "train")
data_sources(dataset)
batch = dataset.collate_fn(dataset.fetch(make_sampler(config, dataset).next_batch()))
print(json.dumps({"rows": len(dataset), "seconds": time.perf_counter() - start, "mb": resident_mb()}))
"""


def write_rows(path: Path, count: int) -> str:
    words = " explain each step" * 10
    part = 100_000
    writer = None
    for first in range(0, count, part):
        rows = [
            {
                "data_source": "addition",
                "prompt": [{"role": "user", "content": f"{row} + {row * 7 % 1000} = ?{words}"}],
                "reward_model": {"style": "rule", "ground_truth": str(row)},
                "extra_info": {"index": row},
            }
            for row in range(first, min(first + part, count))
        ]
        table = pyarrow.Table.from_pylist(rows)
        writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return str(path)


def start(file: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", START, file, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.soak
def test_a_million_rows_start_like_a_thousand(tmp_path: Path) -> None:
    few = start(write_rows(tmp_path / "few.parquet", 1_000), tmp_path / "run")
    file = write_rows(tmp_path / "many.parquet", 1_000_000)
    first, later = start(file, tmp_path / "run"), start(file, tmp_path / "run")
    for name, figure in {"a thousand": few, "a million": first, "a million again": later}.items():
        print(f"{name}: {figure['seconds']:.2f} s, {figure['mb']:.0f} MB")
    assert first["rows"] == 1_000_000
    assert max(first["seconds"], later["seconds"]) < 5
    assert max(first["mb"], later["mb"]) - few["mb"] < 500
