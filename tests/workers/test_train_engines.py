"""Which train engine a strategy makes, where neither DeepSpeed nor Megatron is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from podium.config.schema import ModelConfig, OptimConfig
from podium.engines.train.megatron_build import import_megatron
from podium.engines.train.torch import TorchEngine
from podium.engines.train.zero import import_deepspeed
from podium.errors import ConfigError
from podium.models.load import load_causal_lm
from podium.workers.engines import make_train_engine


@pytest.mark.parametrize("strategy", ["deepspeed", "megatron"])
def test_a_lone_worker_trains_as_with_fsdp(strategy: str) -> None:
    engine = make_train_engine(strategy, load_causal_lm(ModelConfig()), optim=OptimConfig())
    assert type(engine) is TorchEngine


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with pytest.raises(ConfigError, match=r"strategy=deepspeed needs deepspeed.*pip install 'podium\[deepspeed\]'"):
        import_deepspeed(torch.device("cpu"))


def test_a_missing_megatron_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "megatron", None)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    with pytest.raises(ConfigError, match=r"strategy=megatron needs megatron.*pip install 'podium\[megatron\]'"):
        import_megatron()


def test_neither_is_imported_before_it_is_chosen() -> None:
    modules = "podium.workers.actor_rollout_ref, podium.engines.train.deepspeed, podium.engines.train.megatron"
    code = f"import sys, {modules}; assert not {{'deepspeed', 'megatron'}} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
