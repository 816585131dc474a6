"""Which train engine a strategy makes, where DeepSpeed is not installed either."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from podium.config.schema import ModelConfig, OptimConfig
from podium.engines.train.torch import TorchEngine
from podium.engines.train.zero import import_deepspeed
from podium.errors import ConfigError
from podium.models.load import load_causal_lm
from podium.workers.engines import make_train_engine


def test_a_lone_worker_trains_as_with_fsdp() -> None:
    engine = make_train_engine("deepspeed", load_causal_lm(ModelConfig()), optim=OptimConfig())
    assert type(engine) is TorchEngine


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with pytest.raises(ConfigError, match=r"strategy=deepspeed needs deepspeed.*pip install 'podium\[deepspeed\]'"):
        import_deepspeed(torch.device("cpu"))


def test_deepspeed_is_not_imported_before_it_is_chosen() -> None:
    modules = "podium.workers.actor_rollout_ref, podium.engines.train.deepspeed"
    code = f"import sys, {modules}; assert 'deepspeed' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
