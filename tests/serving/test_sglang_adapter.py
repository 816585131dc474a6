"""`rollout.name=sglang` with `rollout.url`, against our own server: it speaks SGLang's language."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from podium.config.schema import ModelConfig, RolloutConfig
from podium.engines.rollout.base import SamplingParams, StopReason
from podium.engines.rollout.external import make_hosted_engine
from podium.engines.rollout.hosted import HostedEngine, mixed_seed
from podium.errors import ConfigError, RolloutError
from podium.models.load import load_causal_lm
from podium.serving.generation import Generator

MODEL = ModelConfig(path="builtin:tiny")


def connect(url: str, generator: Generator, **settings: object) -> HostedEngine:
    config = RolloutConfig(name="sglang", url=url, max_num_seqs=8, **settings)  # type: ignore[arg-type]
    return make_hosted_engine(config, MODEL, generator.tokenizer, torch.float32, torch.device("cpu"))


@pytest.fixture
def engine(server_url: str, generator: Generator, tmp_path: Path) -> Iterator[HostedEngine]:
    engine = connect(server_url, generator, weights_dir=str(tmp_path))
    yield engine
    engine.close()
    generator.engine.load_weights(load_causal_lm(MODEL).state_dict().items(), 0)


def test_it_writes_what_the_server_writes(engine: HostedEngine, generator: Generator) -> None:
    chat = [{"role": "user", "content": "12+15="}]
    prompt = list(generator.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
    params = SamplingParams(max_tokens=8)
    (group,) = engine.generate([prompt], params, n=2, seeds=[3])
    for sample, completion in enumerate(group):
        ((own,),) = generator.engine.generate([prompt], params, seeds=[mixed_seed(3, sample) % (1 << 31)])
        assert completion.token_ids == own.token_ids and completion.stop_reason is own.stop_reason
        assert completion.log_probs == pytest.approx(own.log_probs, abs=1e-5)
    ((stopped,),) = engine.generate([prompt], SamplingParams(max_tokens=8, temperature=0.0, stop=("7",)))
    assert stopped.stop_reason is StopReason.STOP and generator.tokenizer.decode(stopped.token_ids) == "27"
    assert (engine.probe() - generator.engine.probe()).abs().max() < 1e-5


def test_weights_are_published_through_a_folder(engine: HostedEngine, generator: Generator, tmp_path: Path) -> None:
    changed: PreTrainedModel = load_causal_lm(MODEL)
    before = engine.probe()
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.01)
    engine.load_weights(changed.state_dict().items(), 7)
    assert generator.engine.version == 7 and [path.name for path in tmp_path.iterdir()] == ["version-7"]
    assert not engine.probe().equal(before)
    ((completion,),) = engine.generate([[5, 6]], SamplingParams(max_tokens=2))
    assert completion.version == 7


def test_a_server_that_is_not_there_is_named(generator: Generator) -> None:
    with pytest.raises(RolloutError, match=r"no server answers at rollout.url=http://127.0.0.1:9"):
        connect("http://127.0.0.1:9", generator, engine_start_timeout_s=2.0)
    with pytest.raises(ConfigError, match="not a server's address"):
        connect("localhost:30000", generator)
