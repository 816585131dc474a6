"""Search is learned, and it is the search that is learned: `pytest -m soak tests/learning/test_search_learning.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from podium.config import load_config
from podium.tracking import read_metrics
from podium.trainer.main_ppo import run_ppo

EM = "val-core/search/reward/mean@1"


@pytest.mark.soak
@pytest.mark.parametrize("topk", [2, 0], ids=["with the retriever", "every search finds nothing"])
def test_two_hop_questions_are_answered_by_searching_twice(topk: int, tmp_path: Path) -> None:
    words = [
        f"retriever.topk={topk}",
        "data.val_files=task:search?rows=128",
        "trainer.total_training_steps=20",
        "trainer.test_freq=-1",
        "trainer.save_freq=0",
        "trainer.logger=[]",
        f"trainer.default_local_dir={tmp_path}",
    ]
    assert run_ppo(load_config("recipes/search.yaml", words)) == 0
    steps = read_metrics(tmp_path)
    assert steps[0][EM] < 0.2
    if topk:
        assert steps[-1][EM] > 0.8
        assert steps[-1]["env/number_of_valid_search"] > 1.5
    else:
        assert steps[-1][EM] < 0.3
