"""Publishing a policy with adapters: merged weights arrive, and a fault in sending or in merging is caught."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from publish_faults import SMALL, UP_0, UP_1, FaultyEngine, Weights, corrupted, swapped
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from podium.config.schema import ModelConfig, OptimConfig
from podium.engines.rollout.channels import GroupChannel
from podium.engines.rollout.native.engine import NativeEngine
from podium.engines.rollout.remote import RemoteEngines, answer_publish
from podium.engines.sync import make_probe, publish
from podium.engines.train.torch import TorchEngine
from podium.errors import PublishError
from podium.models.load import prepare
from podium.models.lora import add_lora


def make_model() -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=64, intermediate_size=48, initializer_range=0.3, eos_token_id=1, **sizes)
    model = LlamaForCausalLM(config)
    prepare(model)
    return model


@pytest.fixture
def trainer() -> TorchEngine:
    """Trained for a while: every adapter differs from zero."""
    module = make_model()
    add_lora(module, ModelConfig(lora_rank=4, modules_to_save=["lm_head"]))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return TorchEngine(module, optim=OptimConfig(lr=1e-2))


def skipped(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    """One layer keeps its base weight: its adapter never arrives."""
    for name, tensor in weights:
        yield name, make_model().state_dict()[name] if name == UP_1 else tensor


def send(trainer: TorchEngine, engine: NativeEngine, transport: str) -> float:
    """Publish with the probe; the probe's distance."""
    probe = make_probe(trainer)
    if transport == "gathered":
        done = publish(trainer, engine, 1, probe=probe)
    else:
        store = dist.TCPStore("localhost", 0, 2, is_master=True, wait_for_workers=False)
        stores = [store, dist.TCPStore("localhost", store.port, 2, is_master=False)]
        with ThreadPoolExecutor(2) as pool:
            ours, theirs = pool.map(lambda rank: GroupChannel(stores[rank], rank, 2, timeout_s=300.0), range(2))
            answer = pool.submit(answer_publish, theirs, engine)
            try:
                done = publish(trainer, RemoteEngines(ours), 1, probe=probe)
            finally:
                answer.result(300)
    assert done.mode == transport and done.probe_difference is not None
    return done.probe_difference


@pytest.mark.parametrize("transport", ["gathered", "broadcast"])
def test_merged_weights_arrive_under_plain_names(transport: str, trainer: TorchEngine) -> None:
    engine = NativeEngine(make_model(), SMALL)
    assert send(trainer, engine, transport) < 1e-4
    held = dict(engine.weights())
    merged = dict(trainer.weights())
    assert merged.keys() == held.keys()
    assert all(tensor.equal(held[name]) for name, tensor in merged.items())
    assert not held[UP_1].equal(make_model().state_dict()[UP_1])


@pytest.mark.parametrize("fault", [corrupted, skipped, swapped])
@pytest.mark.parametrize("transport", ["gathered", "broadcast"])
def test_a_fault_on_the_way_is_caught_by_the_tensors_name(
    transport: str, fault: Callable[[Weights], Weights], trainer: TorchEngine
) -> None:
    engine = FaultyEngine(make_model(), SMALL)
    engine.fault = fault
    with pytest.raises(PublishError, match=f"Tensor {UP_0 if fault is swapped else UP_1}"):
        send(trainer, engine, transport)


def unmerged(trainer: TorchEngine) -> None:
    trainer.weights = lambda dtype=None: iter(make_model().named_parameters())  # type: ignore[method-assign]


def one_adapter_left_out(trainer: TorchEngine) -> None:
    whole = trainer.weights
    base = dict(make_model().named_parameters())[UP_1]
    trainer.weights = lambda dtype=None: ((n, base if n == UP_1 else t) for n, t in whole(dtype))  # type: ignore[method-assign]


def adapters_swapped(trainer: TorchEngine) -> None:
    whole = trainer.weights

    def weights(dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        yield from swapped(whole(dtype))

    trainer.weights = weights  # type: ignore[method-assign]


@pytest.mark.parametrize("fault", [unmerged, one_adapter_left_out, adapters_swapped])
@pytest.mark.parametrize("transport", ["gathered", "broadcast"])
def test_a_fault_in_merging_is_caught_by_the_probe(
    transport: str, fault: Callable[[TorchEngine], None], trainer: TorchEngine
) -> None:
    """The engine holds exactly what was sent; only the trainer's own log-probs tell that it is not the policy."""
    fault(trainer)
    with pytest.raises(PublishError, match="log-probs of fixed tokens"):
        send(trainer, NativeEngine(make_model(), SMALL), transport)


def test_a_module_with_adapters_is_not_shared(trainer: TorchEngine) -> None:
    with pytest.raises(PublishError, match="is not the same storage"):
        publish(trainer, NativeEngine(make_model(), SMALL), 1, mode="shared")
