"""Real vLLM and SGLang: `make test-vllm` and `make test-sglang` say in an environment variable which Python has one.

Without it these tests are skipped. An engine takes half a minute to start, so the tests of one share it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from podium.config.schema import ModelConfig, OptimConfig, RolloutConfig
from podium.engines.rollout.external import make_hosted_engine
from podium.engines.rollout.hosted import HostedEngine
from podium.engines.train.torch import TorchEngine
from podium.models.load import load_causal_lm, load_tokenizer

MODEL = ModelConfig(path="builtin:tiny")
VARIABLES = {"vllm": "PODIUM_VLLM_PYTHON", "sglang": "PODIUM_SGLANG_PYTHON"}


@pytest.fixture(scope="session", params=VARIABLES)
def engine_name(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if not os.environ.get(VARIABLES[name]):
        pytest.skip(f"make test-{name} builds an environment for this")
    return name


@pytest.fixture(scope="session")
def engine_python(engine_name: str) -> str:
    return os.environ[VARIABLES[engine_name]]


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return load_tokenizer(MODEL.path)


@pytest.fixture(scope="session")
def start_engine(engine_name: str, engine_python: str, tokenizer: Any) -> Iterator[Callable[..., HostedEngine]]:
    made: list[HostedEngine] = []

    def start(**settings: Any) -> HostedEngine:
        config = RolloutConfig(name=engine_name, python=engine_python, max_num_seqs=32, kv_cache_gb=1.0, **settings)  # type: ignore[arg-type]
        made.append(make_hosted_engine(config, MODEL, tokenizer, torch.float32, torch.device("cpu")))
        return made[-1]

    yield start
    for engine in made:
        engine.close()


@pytest.fixture(scope="session")
def shared_engine(start_engine: Callable[..., HostedEngine]) -> HostedEngine:
    return start_engine()


@pytest.fixture
def policy() -> PreTrainedModel:
    return load_causal_lm(MODEL)


@pytest.fixture
def engine(shared_engine: HostedEngine, policy: PreTrainedModel) -> HostedEngine:
    """With the weights of the model's folder."""
    shared_engine.load_weights(policy.state_dict().items(), shared_engine.version + 1)
    return shared_engine


@pytest.fixture
def trainer(policy: PreTrainedModel) -> TorchEngine:
    return TorchEngine(policy, optim=OptimConfig(lr=1e-3), total_steps=10)
