"""Several sources by weight, and samplers of the user's own."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from podium.config import load_config
from podium.config.schema import DataConfig
from podium.data.dataset import RLHFDataset
from podium.data.mixing import MixingSampler, make_sampler
from podium.data.sampler import ResumableSampler
from podium.errors import ConfigError

OWN = """
class Hardest:
    def __init__(self, size, batch_size, dataset):
        self.size, self.batch_size, self.epoch, self.at = size, batch_size, 0, 0
        assert len(dataset) == size
    def __len__(self): return self.size // self.batch_size
    def next_batch(self):
        self.at += 1
        return list(range(self.size - self.batch_size, self.size))
    def state_dict(self): return {"at": self.at}
    def load_state_dict(self, state): self.at = state["at"]

class Half:
    epoch = 0
    def next_batch(self): return []

def function(size): return None
"""


def test_sources_are_drawn_by_weight():
    sampler = MixingSampler([0, 100, 1000], [3, 1], batch_size=50, seed=1)
    rows = [row for _ in range(100) for row in sampler.next_batch()]
    share = sum(row < 100 for row in rows) / len(rows)
    assert 0.72 < share < 0.78


def test_each_source_gives_every_row_once_before_any_comes_again():
    sampler = MixingSampler([0, 40, 80], [1, 1], batch_size=10, seed=3)
    drawn = [row for _ in range(20) for row in sampler.next_batch()]
    for start in (0, 40):
        own = [row for row in drawn if start <= row < start + 40]
        assert len(set(own[:40])) == 40
        assert set(Counter(own[:80]).values()) <= {1, 2}


def test_it_resumes_exactly_from_three_integers():
    sampler = MixingSampler([0, 30, 100, 110], [1, 2, 0.5], batch_size=7, seed=5)
    for _ in range(11):
        sampler.next_batch()
    state = sampler.state_dict()
    assert set(state) == {"seed", "epoch", "cursor"}
    after = [(sampler.next_batch(), sampler.epoch) for _ in range(30)]
    again = MixingSampler([0, 30, 100, 110], [1, 2, 0.5], batch_size=7, seed=0)
    again.load_state_dict(state)
    assert [(again.next_batch(), again.epoch) for _ in range(30)] == after


def test_a_row_that_comes_again_comes_in_another_epoch():
    """Samples are seeded by the epoch: the same row in the same epoch would be the same samples again."""
    sampler = MixingSampler([0, 200, 500], [1, 1], batch_size=4, seed=2)
    epochs = [sampler.epoch for _ in range(60) if sampler.next_batch()]
    assert epochs == list(range(1, 61))


def test_the_config_chooses_the_sampler(tokenizer, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    files = ["task:addition?rows=20", "task:reverse?rows=30"]

    def make(*words):
        config = load_config(None, [f"data.train_files={json.dumps(files)}", "data.train_batch_size=5", *words])
        return make_sampler(config, RLHFDataset(files, tokenizer, DataConfig()))

    assert type(make()) is ResumableSampler
    mixed = make('data.mix_weights={"task:addition?rows=20": 1, "task:reverse?rows=30": 3}')
    assert isinstance(mixed, MixingSampler) and mixed.sizes == [20, 30]
    own = make(f"data.sampler={tmp_path}/own.py:Hardest")
    assert own.next_batch() == [45, 46, 47, 48, 49] and len(own) == 10
    for words, reason in [
        (f"data.sampler={tmp_path}/own.py:Half", "lacks state_dict, load_state_dict, __len__"),
        (f"data.sampler={tmp_path}/own.py:function", "is no class"),
        ('data.mix_weights={"task:addition": 1}', "is not one of data.train_files"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            make(words)
