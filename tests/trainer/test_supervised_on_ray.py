"""`podium sft` and `train-reward` on several workers: the same losses and weights as on one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from podium.config.schema_sft import load_reward_config, load_sft_config
from podium.data.responses import Example, make_batch
from podium.errors import ConfigError
from podium.models.load import load_tokenizer
from podium.single_controller import shutdown_ray
from podium.tracking import read_metrics
from podium.trainer.supervised import REWARD, SFT, run_supervised, share_out

JOBS: dict[str, Any] = {"sft": (SFT, load_sft_config), "rm": (REWARD, load_reward_config)}
SMALL = [
    *("data.train_files=task:addition?rows=256", "data.val_files=task:addition?rows=31", "data.train_batch_size=15"),
    *("optim.lr=5e-4", "trainer.total_training_steps=2", "trainer.logger=[]"),
]


@pytest.fixture(scope="module", autouse=True)
def ray_ends_with_the_module() -> Iterator[None]:
    yield
    shutdown_ray()


@pytest.mark.parametrize("name", ["rm", pytest.param("sft", marks=pytest.mark.soak)])
def test_two_workers_learn_what_one_learns(name: str, tmp_path: Path) -> None:
    job, load = JOBS[name]
    found = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        words = [*SMALL, f"trainer.n_gpus_per_node={workers}", f"trainer.default_local_dir={folder}"]
        assert run_supervised(load(None, words), job) == 0
        records = read_metrics(folder)
        numbers = [r[key] for r in records for key in (f"{name}/loss", f"val/{name}/loss") if key in r]
        found.append((numbers, load_file(folder / "checkpoints" / "global_step_2" / "hf" / "model.safetensors")))
    (losses, weights), (other_losses, other_weights) = found
    assert len(losses) == 4 and other_losses == pytest.approx(losses, rel=1e-4)
    weights.pop("value_head.bias", None)  # a pair says nothing about it: Adam follows what is left of rounding
    for key, tensor in weights.items():
        assert torch.allclose(tensor, other_weights[key], atol=2e-4), key


def test_a_pair_stays_on_one_rank_and_every_row_has_one() -> None:
    tokenizer = load_tokenizer("builtin:tiny")
    batch = make_batch([Example([1, 2], [3] * (1 + row % 5)) for row in range(10)], tokenizer)
    parts = share_out(batch, 3).meta_info["dp_partition"]
    assert sorted(row for part in parts for row in part) == list(range(10))
    batch.put(is_chosen=torch.tensor([True, False] * 5))
    parts = share_out(batch, 3).meta_info["dp_partition"]
    assert all(part[0::2] == [row - 1 for row in part[1::2]] and part[0] % 2 == 0 for part in parts)
    assert share_out(batch, 7).meta_info["dp_partition"][5:] == [[], []]


def test_several_workers_need_ray() -> None:
    from podium.config.schema_sft import check_supervised

    config = load_sft_config(None, [*SMALL, "trainer.n_gpus_per_node=2", "trainer.runtime=local"])
    with pytest.raises(ConfigError, match=r"2 workers are asked for; set trainer\.runtime=ray"):
        check_supervised(config)
