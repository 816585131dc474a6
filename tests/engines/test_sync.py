from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from publish_faults import SMALL, UP_0, UP_1, FaultyEngine, Weights, corrupted, dropped, make_model, skipped, swapped
from torch import Tensor
from transformers import PreTrainedModel

from podium.config.schema import OptimConfig
from podium.engines.rollout.base import SamplingParams
from podium.engines.rollout.hf import HFEngine
from podium.engines.rollout.native.engine import NativeEngine
from podium.engines.rollout.weights import SLICE_VALUES, sample_values
from podium.engines.sync import make_probe, publish
from podium.engines.train.torch import TorchEngine
from podium.errors import PublishError
from podium.metric import reduce_metrics


@pytest.fixture
def trainer() -> TorchEngine:
    return TorchEngine(make_model(), optim=OptimConfig(lr=1e-2), total_steps=10)


def move(trainer: TorchEngine) -> None:
    """As an update would: the trainer's weights change in place."""
    with torch.no_grad():
        for parameter in trainer.module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)


def test_one_module_for_both_is_published_without_a_copy(trainer: TorchEngine) -> None:
    assert isinstance(trainer.module, PreTrainedModel)
    rollout = NativeEngine(trainer.module, SMALL)
    for version in (1, 2):
        move(trainer)
        done = publish(trainer, rollout, version, probe=make_probe(trainer))
        assert (done.mode, done.num_bytes, rollout.version) == ("shared", 0, version)
        assert done.probe_difference is not None and done.probe_difference < 1e-4
    assert rollout.generate([[2, 3]], SamplingParams(max_tokens=2))[0][0].version == 2
    assert reduce_metrics(done.metrics())["publish/version"] == 2


def test_a_shared_publish_in_the_middle_of_a_response_leaves_nothing_of_the_old_weights(trainer: TorchEngine) -> None:
    """Keys and values of the old weights would change what follows, and so would a turn that goes on from them."""
    assert isinstance(trainer.module, PreTrainedModel)
    rollout = NativeEngine(trainer.module, SMALL)
    rollout.scheduler.held.fewest_tokens = 0  # even a short turn is worth keeping
    prompt, greedy = [5, 9, 2, 30, 7, 11, 3], SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    (turn,) = rollout.submit_group(prompt, SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True), n=1)
    rollout.keep([turn])
    while not turn.done:
        rollout.step()
    request = rollout.submit(prompt, greedy)
    for _ in range(5):  # a token each
        rollout.step()
    before = NativeEngine(copy.deepcopy(trainer.module), SMALL).generate([prompt], greedy)[0][0]
    move(trainer)
    publish(trainer, rollout, 1, mode="shared")
    while not request.done:
        rollout.step()
    written = request.result()
    assert written.token_ids[:5] == before.token_ids[:5] and written.token_ids[5:] != before.token_ids[5:]
    fresh = NativeEngine(copy.deepcopy(trainer.module), SMALL)
    rest = SamplingParams(max_tokens=7, temperature=0.0, ignore_eos=True)
    expected = fresh.generate([prompt + written.token_ids[:5]], rest)[0][0]
    assert written.token_ids[5:] == expected.token_ids
    assert written.raw_log_probs[5:] == pytest.approx(expected.raw_log_probs, abs=1e-5)

    longer = prompt + turn.result().token_ids + [8, 4]
    second = rollout.submit_turn(longer, rest, seed=0, sample=0, previous=turn)
    while not second.done:
        rollout.step()
    expected = fresh.generate([longer], rest)[0][0]
    assert second.result().token_ids == expected.token_ids
    assert second.result().raw_log_probs == pytest.approx(expected.raw_log_probs, abs=1e-5)


@pytest.mark.parametrize("kind", [NativeEngine, HFEngine])
def test_an_engine_with_its_own_module_gets_every_tensor(
    kind: Callable[..., NativeEngine | HFEngine], trainer: TorchEngine
) -> None:
    rollout = kind(make_model(seed=1), SMALL)
    move(trainer)
    done = publish(trainer, rollout, 3, probe=make_probe(trainer))
    assert done.mode == "gathered" and done.num_bytes > 0
    held = dict(rollout.weights())
    assert all(tensor.equal(held[name]) for name, tensor in trainer.module.state_dict().items())


def test_a_bfloat16_engine_holds_the_rounded_weights(trainer: TorchEngine) -> None:
    rollout = NativeEngine(make_model(seed=1).to(torch.bfloat16), SMALL)
    done = publish(trainer, rollout, 1, probe=make_probe(trainer), tolerance=0.5)
    assert done.probe_difference is not None and done.probe_difference > 0


def renamed(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    return ((name + "_ema" if name == UP_1 else name, tensor) for name, tensor in weights)


@pytest.mark.parametrize("fault", [corrupted, skipped, swapped, dropped, renamed])
def test_a_fault_on_the_way_is_caught_by_the_tensors_name(
    fault: Callable[[Weights], Weights], trainer: TorchEngine
) -> None:
    rollout = FaultyEngine(make_model(seed=1), SMALL)
    rollout.fault = fault
    expected = UP_0 if fault is swapped else UP_1
    with pytest.raises(PublishError, match=f"Tensor {expected}"):
        publish(trainer, rollout, 1)


def wrong_between_the_samples(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in weights:
        if name == UP_1:
            wrong = tensor.clone()
            wrong += 1.0
            stride = -(-tensor.numel() // SLICE_VALUES)
            start = int(sample_values(torch.arange(tensor.numel()), version=1)[0])
            wrong.view(-1)[start::stride] = tensor.view(-1)[start::stride]
            tensor = wrong
        yield name, tensor


def test_what_the_sampled_values_miss_the_probe_sees_and_names(trainer: TorchEngine) -> None:
    rollout = FaultyEngine(make_model(seed=1), SMALL)
    rollout.fault = wrong_between_the_samples
    publish(trainer, rollout, 1)
    with pytest.raises(PublishError, match=rf"log-probs of fixed tokens .* Tensor {UP_1}"):
        publish(trainer, rollout, 1, probe=make_probe(trainer))


def test_ranks_whose_engines_are_well_help_to_find_the_tensor_that_another_rank_misses(
    trainer: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Naming it gathers the weights of all ranks; the one with the fault would wait for the others without end."""
    streams, weights, votes = [], trainer.weights, []
    monkeypatch.setattr(trainer, "weights", lambda *args: streams.append(args) or weights(*args))  # type: ignore[func-returns-value]

    def all_well(well: bool) -> bool:
        votes.append(well)
        return False

    done = publish(trainer, NativeEngine(make_model(1), SMALL), 1, probe=make_probe(trainer), all_well=all_well)
    assert votes == [True] and len(streams) == 2, "one for the publish, one to find the tensor"
    assert done.probe_difference is not None and done.probe_difference < 1e-4, "this one has nothing to complain of"
    bad = FaultyEngine(make_model(seed=1), SMALL)
    bad.fault = wrong_between_the_samples
    with pytest.raises(PublishError, match=rf"log-probs of fixed tokens .* Tensor {UP_1}"):
        publish(trainer, bad, 1, probe=make_probe(trainer), all_well=all_well)
    assert votes == [True, False]


def test_a_shared_tensor_that_was_replaced_is_caught(trainer: TorchEngine) -> None:
    theirs = copy.deepcopy(trainer.module, memo={id(p): p for p in trainer.module.parameters()})
    assert isinstance(theirs, PreTrainedModel)
    rollout = NativeEngine(theirs, SMALL)
    assert publish(trainer, rollout, 1, mode="shared").num_bytes == 0
    layer = theirs.get_submodule("model.layers.1.mlp.up_proj")
    layer.weight = torch.nn.Parameter(layer.weight.detach().clone())
    with pytest.raises(PublishError, match=f"Tensor {UP_1} is not the same storage"):
        publish(trainer, rollout, 2, mode="shared")
    assert rollout.version == 1


@pytest.mark.parametrize("fault", ["corrupted", "swapped", "skipped"])
def test_a_fault_between_engines_that_share_is_caught_by_the_tensors_name(fault: str, trainer: TorchEngine) -> None:
    theirs = copy.deepcopy(trainer.module, memo={id(p): p for p in trainer.module.parameters()})
    assert isinstance(theirs, PreTrainedModel)
    rollout = NativeEngine(theirs, SMALL)
    first, second = (theirs.get_submodule(f"model.layers.{i}.mlp.up_proj") for i in range(2))
    if fault == "corrupted":
        second.weight = torch.nn.Parameter(second.weight.detach() + 0.01)
    elif fault == "swapped":
        first.weight, second.weight = second.weight, first.weight
    else:  # an update that gave the trainer's tensor a new storage, which the engine never saw
        ours = trainer.module.get_submodule("model.layers.1.mlp.up_proj")
        ours.weight = torch.nn.Parameter(ours.weight.detach() * 1.1)
    with pytest.raises(PublishError, match=r"Tensor model.layers.[01].mlp.up_proj.weight is not the same storage"):
        publish(trainer, rollout, 1, mode="shared")
    assert rollout.version == 0


def test_engines_that_compute_differently_are_told_so(trainer: TorchEngine) -> None:
    assert isinstance(trainer.module, PreTrainedModel)
    rollout = NativeEngine(trainer.module, SMALL)
    with pytest.raises(PublishError, match=r"are 1 off the trainer's .* No tensor differs"):
        publish(trainer, rollout, 1, probe=lambda tokens: make_probe(trainer)(tokens) + 1.0)
    with pytest.raises(PublishError, match="nan off"):
        publish(trainer, rollout, 1, probe=lambda tokens: make_probe(trainer)(tokens) * float("nan"))


def test_an_engine_that_does_not_take_the_version_is_caught(trainer: TorchEngine) -> None:
    rollout = NativeEngine(make_model(seed=1), SMALL)
    rollout.load_weights = lambda weights, version: list(weights) and None  # type: ignore[method-assign]
    with pytest.raises(PublishError, match="version 0 after version 5"):
        publish(trainer, rollout, 5)
