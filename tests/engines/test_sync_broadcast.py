"""Publishing to engines behind a channel: real process groups and stores, the rollout side in threads or a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from publish_faults import SMALL, UP_0, UP_1, FaultyEngine, Weights, corrupted, dropped, make_model, skipped, swapped
from torch import Tensor
from transformers import PreTrainedModel

from podium.config.schema import OptimConfig
from podium.engines.rollout.base import SamplingParams
from podium.engines.rollout.buckets import into_buckets
from podium.engines.rollout.channels import PIECE_BYTES, Channel, GroupChannel, StoreChannel
from podium.engines.rollout.native.engine import NativeEngine
from podium.engines.rollout.remote import KeptWeights, RemoteEngines, answer_publish
from podium.engines.rollout.weights import SLICE_VALUES, sample_values
from podium.engines.sync import make_probe, publish
from podium.engines.train.torch import TorchEngine
from podium.errors import PublishError

KINDS: list[Callable[..., Channel]] = [GroupChannel, StoreChannel]


@pytest.fixture
def trainer() -> TorchEngine:
    return TorchEngine(make_model(), optim=OptimConfig(lr=1e-2), total_steps=10)


def connect(kind: Callable[..., Channel], size: int, timeout_s: float = 300.0) -> list[Channel]:
    """The ends of one channel; a process group needs all of them to come at once."""
    store = dist.TCPStore("localhost", 0, size, is_master=True, wait_for_workers=False)

    def end(rank: int) -> Channel:
        own = dist.TCPStore("localhost", store.port, size, is_master=False)
        return kind(own, rank, size, timeout_s=timeout_s)

    with ThreadPoolExecutor(size) as pool:
        ends = list(pool.map(end, range(size)))
    ends[0].keep_alive = store  # type: ignore[attr-defined]
    return ends


def shorten(end: Channel, timeout_s: float) -> None:
    """Little patience from here on; to find each other its ends had enough."""
    end.timeout_s = timeout_s
    if isinstance(end, GroupChannel):
        end._words._set_default_timeout(timedelta(seconds=timeout_s))


def serve(ends: list[Channel], engines: list[NativeEngine], times: int = 1) -> list[Future[list[int]]]:
    """The rollout side, in threads."""
    pool = ThreadPoolExecutor(len(engines))
    return [
        pool.submit(lambda c, e: [answer_publish(c, e) for _ in range(times)], channel, engine)
        for channel, engine in zip(ends, engines, strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_engine_gets_every_tensor_and_generates_with_it(
    kind: Callable[..., Channel], trainer: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podium.engines.rollout.remote.into_buckets", lambda w: into_buckets(w, bucket_bytes=4096))
    engines = [NativeEngine(make_model(seed), SMALL) for seed in (1, 2)]
    ends = connect(kind, 3)
    answers = serve(ends[1:], engines, times=2)
    remote = RemoteEngines(ends[0])
    for version in (1, 2):
        with torch.no_grad():
            for parameter in trainer.module.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
        done = publish(trainer, remote, version, probe=make_probe(trainer))
        assert (done.mode, done.version) == ("broadcast", version) and done.num_bytes > 4096
        assert done.probe_difference is not None and done.probe_difference < 1e-4
    assert [answer.result(300) for answer in answers] == [[1, 2]] * 2
    for engine in engines:
        held = dict(engine.weights())
        assert all(tensor.equal(held[name]) for name, tensor in trainer.module.state_dict().items())
        assert engine.generate([[2, 3]], SamplingParams(max_tokens=2))[0][0].version == 2


@pytest.mark.parametrize("fault", [corrupted, skipped, swapped, dropped])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_in_one_of_two_engines_is_caught_by_the_tensors_name(
    kind: Callable[..., Channel], fault: Callable[[Weights], Weights], trainer: TorchEngine
) -> None:
    good, bad = NativeEngine(make_model(1), SMALL), FaultyEngine(make_model(1), SMALL)
    bad.fault = fault
    ends = connect(kind, 3)
    answers = serve(ends[1:], [good, bad])
    with pytest.raises(PublishError, match=f"Tensor {UP_0 if fault is swapped else UP_1}"):
        publish(trainer, RemoteEngines(ends[0]), 1)
    for answer in answers:
        answer.result(300)


def test_what_the_sampled_values_miss_the_probe_sees_and_names(trainer: TorchEngine) -> None:
    def wrong_between_the_samples(weights: Weights) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights:
            if name == UP_1:
                wrong = tensor + 1.0
                stride = -(-tensor.numel() // SLICE_VALUES)
                start = int(sample_values(torch.arange(tensor.numel()), version=1)[0])
                wrong.view(-1)[start::stride] = tensor.reshape(-1)[start::stride]
                tensor = wrong
            yield name, tensor

    engine = FaultyEngine(make_model(1), SMALL)
    engine.fault = wrong_between_the_samples
    ends = connect(GroupChannel, 2)
    answers = serve(ends[1:], [engine])
    with pytest.raises(PublishError, match=rf"log-probs of fixed tokens .* Tensor {UP_1}"):
        publish(trainer, RemoteEngines(ends[0]), 1, probe=make_probe(trainer))
    assert answers[0].result(300) == [1]


def test_an_engine_that_keeps_its_old_version_is_caught(trainer: TorchEngine) -> None:
    engine = NativeEngine(make_model(1), SMALL)
    engine.load_weights = lambda weights, version: list(weights) and None  # type: ignore[method-assign]
    ends = connect(StoreChannel, 2)
    serve(ends[1:], [engine])
    with pytest.raises(PublishError, match="version 0 after version 5"):
        publish(trainer, RemoteEngines(ends[0]), 5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_silent_rollout_process_is_named_when_the_time_is_up(
    kind: Callable[..., Channel], trainer: TorchEngine
) -> None:
    ends = connect(kind, 2)
    shorten(ends[0], 1.0)
    with pytest.raises(PublishError, match=r"rollout process.* within 1 s"):
        publish(trainer, RemoteEngines(ends[0]), 1)


def test_a_trainer_that_never_speaks_is_named_too() -> None:
    ends = connect(StoreChannel, 2)
    shorten(ends[1], 0.5)
    with pytest.raises(PublishError, match=r"the trainer said nothing .* within 0.5 s"):
        answer_publish(ends[1], NativeEngine(make_model(1), SMALL))


@pytest.mark.parametrize("kind", KINDS)
def test_a_way_that_breaks_at_once_is_not_said_to_have_taken_its_limit(
    kind: Callable[..., Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    ends = connect(kind, 2, timeout_s=3600.0)
    monkeypatch.setattr(ends[0], "_say", breaks)
    with pytest.raises(PublishError, match=r"did not take \(load\) and the way between them broke after \d") as caught:
        ends[0].say({"kind": "load"})
    assert "3600" not in str(caught.value)


def test_every_tensor_is_gathered_though_the_way_breaks_at_the_first(trainer: TorchEngine) -> None:
    """The other ranks go through all of them too; one that left early would meet them in another collective."""
    ends = connect(StoreChannel, 2)
    ends[0].say = lambda *_: (_ for _ in ()).throw(PublishError("gone"))  # type: ignore[method-assign]
    gathered = []

    def weights() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in trainer.weights():
            gathered.append(name)
            yield name, tensor

    with pytest.raises(PublishError, match="gone"):
        RemoteEngines(ends[0]).load_weights(weights(), 1)
    assert gathered == [name for name, _ in trainer.weights()]


def test_ranks_of_the_trainer_meet_before_the_probe_also_when_one_could_not_send(trainer: TorchEngine) -> None:
    votes: list[bool] = []

    def all_well(well: bool) -> bool:
        votes.append(well)
        return False  # the other one was not

    ends = connect(StoreChannel, 2)
    ends[0].say = lambda *_: (_ for _ in ()).throw(PublishError("gone"))  # type: ignore[method-assign]
    with pytest.raises(PublishError, match="gone"):
        publish(trainer, RemoteEngines(ends[0], all_well=all_well), 1, probe=make_probe(trainer))
    with pytest.raises(PublishError, match="Rank 0 of the trainer could not publish"):
        publish(trainer, RemoteEngines(None, all_well=all_well), 1, probe=make_probe(trainer))
    assert votes == [False, True]


def test_ranks_of_the_trainer_leave_together_when_an_engine_is_lost_at_its_probe(trainer: TorchEngine) -> None:
    """Rank 0 alone hears of it; the others would go on to compare, which is collective, and wait there for rank 0."""
    votes: list[bool] = []

    def all_well(well: bool) -> bool:
        votes.append(well)
        return len(votes) % 2 == 1  # the second time one of them is not

    ends = connect(StoreChannel, 2)
    serve(ends[1:], [NativeEngine(make_model(1), SMALL)])
    hear = ends[0].hear

    def gone(kind: str) -> list[Any]:
        if kind == "probe":
            raise PublishError("gone")
        return hear(kind)

    ends[0].hear = gone  # type: ignore[method-assign]
    with pytest.raises(PublishError, match="gone"):
        publish(trainer, RemoteEngines(ends[0], all_well=all_well), 1, probe=make_probe(trainer))
    assert votes == [True, False]
    with pytest.raises(PublishError, match="Rank 0 of the trainer could not publish"):
        publish(trainer, RemoteEngines(None, all_well=all_well), 1, probe=make_probe(trainer))
    assert votes == [True, False, True, True]


def test_kept_weights_are_published_again_to_new_engines_bit_for_bit(trainer: TorchEngine) -> None:
    kept, versions = KeptWeights(limit=2), {}
    for version in (1, 2, 3):
        with torch.no_grad():
            for parameter in trainer.module.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
        versions[version] = {name: tensor.clone() for name, tensor in trainer.weights()}
        publish(trainer, RemoteEngines(None, kept), version)
    new = NativeEngine(make_model(1), SMALL)
    ends = connect(GroupChannel, 2)
    answers = serve(ends[1:], [new], times=2)
    remote = RemoteEngines(ends[0], kept)
    remote.resend(2)
    held = dict(new.weights())
    assert new.version == 2 and all(tensor.equal(held[name]) for name, tensor in versions[2].items())
    publish(trainer, remote, 3, probe=make_probe(trainer))
    assert answers[0].result(300) == [2, 3]
    with pytest.raises(PublishError, match=r"version 1 are not kept; there are \[2, 3\]"):
        remote.resend(1)


def test_kept_weights_that_arrive_wrong_are_named(trainer: TorchEngine) -> None:
    kept, bad = KeptWeights(limit=1), FaultyEngine(make_model(1), SMALL)
    publish(trainer, RemoteEngines(None, kept), 1)
    bad.fault = corrupted
    ends = connect(StoreChannel, 2)
    answers = serve(ends[1:], [bad])
    with pytest.raises(PublishError, match=f"tensors that differ: {UP_1}"):
        RemoteEngines(ends[0], kept).resend(1)
    answers[0].result(300)


def test_a_store_takes_more_than_one_of_its_values_can_hold() -> None:
    data = torch.arange(3 * PIECE_BYTES // 8 + 5, dtype=torch.int64).view(torch.uint8)
    trainer_end, rollout_end = connect(StoreChannel, 2)
    trainer_end.say({"kind": "bucket"}, data)
    message, received = rollout_end.listen()
    assert message["bytes"] == data.numel() > 8 << 20
    assert received is not None and received.equal(data)


def test_a_rank_without_a_channel_helps_to_gather_and_checks_nothing(trainer: TorchEngine) -> None:
    done = publish(trainer, RemoteEngines(None), 3, probe=make_probe(trainer))
    assert done.mode == "broadcast" and done.num_tensors > 10 and done.probe_difference == 0.0


def test_ranks_without_a_channel_help_to_find_the_tensor_that_rank_0_misses(
    trainer: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Naming it gathers the weights again; rank 0 alone would wait for the others without end."""
    streams, weights = [], trainer.weights
    monkeypatch.setattr(trainer, "weights", lambda *args: streams.append(args) or weights(*args))  # type: ignore[func-returns-value]
    votes = iter([True, True, False])  # all could send, and hear; rank 0 heard other log-probs
    publish(trainer, RemoteEngines(None, all_well=lambda well: next(votes)), 1, probe=make_probe(trainer))
    assert len(streams) == 3, "one for the publish, two to find the tensor"


def test_a_store_is_left_empty(trainer: TorchEngine) -> None:
    ends = connect(StoreChannel, 2)
    store: Any = ends[0].store  # type: ignore[attr-defined]
    before = store.num_keys()
    answers = serve(ends[1:], [NativeEngine(make_model(1), SMALL)])
    publish(trainer, RemoteEngines(ends[0]), 1)
    answers[0].result(300)
    assert store.num_keys() - before <= 2, "the last word may still lie there, in one piece"


ROLLOUT_PROCESS = """
import sys
import torch.distributed as dist
sys.path.insert(0, {tests!r})
from test_sync_broadcast import SMALL, make_model
from podium.engines.rollout.base import SamplingParams
from podium.engines.rollout.channels import GroupChannel
from podium.engines.rollout.native.engine import NativeEngine
from podium.engines.rollout.remote import answer_publish
channel = GroupChannel(dist.TCPStore("localhost", {port}, 2, is_master=False), 1, 2, timeout_s=600)
engine = NativeEngine(make_model(1), SMALL)
answer_publish(channel, engine)
print(engine.generate([[2, 3, 4]], SamplingParams(max_tokens=6, temperature=0.0))[0][0])
"""


@pytest.mark.slow
def test_a_rollout_engine_in_another_process_writes_what_the_trainers_weights_write(trainer: TorchEngine) -> None:
    store = dist.TCPStore("localhost", 0, 2, is_master=True, wait_for_workers=False)
    code = ROLLOUT_PROCESS.format(tests=str(__file__).rsplit("/", 1)[0], port=store.port)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        channel = GroupChannel(store, 0, 2, timeout_s=600)
        publish(trainer, RemoteEngines(channel), 9, probe=make_probe(trainer))
        out, _ = process.communicate(timeout=600)
    finally:
        process.kill()
    assert isinstance(trainer.module, PreTrainedModel)
    here = NativeEngine(trainer.module, SMALL)
    here.set_version(9)
    assert out.strip() == str(here.generate([[2, 3, 4]], SamplingParams(max_tokens=6, temperature=0.0))[0][0])
