"""A small run of the real trainer: the built-in model, a handful of prompts, every part in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podium.config import load_config
from podium.config.schema import Config
from podium.tracking import read_metrics
from podium.trainer.main_ppo import run_ppo

SMALL = [
    "data.train_files=task:addition?rows=64",
    "data.val_files=task:addition?rows=16",
    "data.train_batch_size=8",
    "data.max_prompt_length=64",
    "data.max_response_length=8",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.kv_cache_gb=0.1",
    "actor_rollout_ref.actor.optim.lr=1e-4",
    "trainer.total_training_steps=2",
    "trainer.val_before_train=false",
    "trainer.save_freq=0",
    "trainer.logger=[]",
]


@pytest.fixture
def small_config(tmp_path: Path) -> Callable[..., Config]:
    def make(*words: str, folder: str = "run") -> Config:
        return load_config(None, [*SMALL, f"trainer.default_local_dir={tmp_path / folder}", *words])

    return make


@pytest.fixture
def run(small_config: Callable[..., Config]) -> Callable[..., list[dict[str, Any]]]:
    """Train and return the metrics of each step, validation lines merged in."""

    def train(*words: str, folder: str = "run") -> list[dict[str, Any]]:
        config = small_config(*words, folder=folder)
        assert run_ppo(config) == 0
        return read_metrics(config.trainer.default_local_dir)

    return train
