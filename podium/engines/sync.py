"""Publishing: trained weights into a rollout engine, with a proof that they arrived.

`shared`: both engines run one module, so nothing is copied; the new version is set and what was computed from the old
weights is dropped. `gathered`: full tensors stream from the trainer into the engine's own module. `broadcast`: the
engines are in other processes, behind a channel (rollout/remote.py has their side). Every publish is then checked: a
sample of each tensor's values (shared: the very storages), and the engine's log-probs of fixed tokens against the
trainer's. A difference raises a PublishError that names the tensor. A transport is a function in `TRANSPORTS`; deciding
when to publish is the trainer's. Adapters are merged by whoever streams `weights()`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from podium.engines.rollout.base import RolloutEngine
from podium.engines.rollout.remote import RemoteEngines, differing
from podium.engines.rollout.weights import named_tensors, sample_values, storage_of
from podium.errors import PublishError
from podium.metric import Metric, Metrics
from podium.protocol import DataProto

Mode = Literal["shared", "gathered", "broadcast"]
Receiver = RolloutEngine | RemoteEngines
Probe = Callable[[list[int]], Tensor]
"""The trainer's own log-probs [P-1] of tokens 1 to P-1."""

FLOAT32_TOLERANCE = 1e-3
HALF_TOLERANCE = 0.1
"""Mean distance of the probe's log-probs: both engines run the same weights, but round in another order."""


class WeightSource(Protocol):
    """The part of a train engine that publishing needs."""

    @property
    def module(self) -> nn.Module: ...

    @property
    def sharded(self) -> bool: ...

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in; the shards of its parameters may be of another type."""
        ...

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]: ...


class Scorer(Protocol):
    """The part of a train engine that the probe needs."""

    def log_probs(self, batch: DataProto, *, temperature: float) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class Sent:
    """What a transport did: bytes copied, and sampled values of each tensor as the trainer has them."""

    num_tensors: int
    num_bytes: int = 0
    samples: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Publication:
    """One publish that passed its checks."""

    version: int
    mode: Mode
    num_tensors: int
    num_bytes: int
    probe_difference: float | None
    """Mean distance of the engine's and the trainer's log-probs; None when no probe was given."""
    seconds: float

    def metrics(self) -> Metrics:
        metrics = {
            "publish/version": Metric.last(self.version),
            "publish/bytes": Metric.sum(self.num_bytes),
            "publish/seconds": Metric.sum(self.seconds),
        }
        if self.probe_difference is not None:
            metrics["publish/probe_difference"] = Metric.max(self.probe_difference)
        return metrics


def publish(
    train_engine: WeightSource,
    rollout_engine: Receiver,
    version: int,
    *,
    mode: Mode | Literal["auto"] = "auto",
    probe: Probe | None = None,
    tolerance: float | None = None,
    all_well: Callable[[bool], bool] = lambda well: well,
) -> Publication:
    """Give the rollout engine the trainer's weights as `version`; all ranks of a sharded trainer call this.

    `all_well`: tells ranks that have an engine each whether every one of them is well.
    """
    start = time.perf_counter()
    if mode == "auto":
        same = rollout_engine.module is train_engine.module and not train_engine.sharded
        mode = "shared" if same else "gathered"
    if isinstance(rollout_engine, RemoteEngines):
        mode = "broadcast"
    try:
        sent = _send(train_engine, rollout_engine, version, mode, probe)
        difference = None
        if probe is not None:
            vote = rollout_engine.all_well if isinstance(rollout_engine, RemoteEngines) else all_well
            difference = _check_probe(train_engine, rollout_engine, probe, tolerance, vote)
    except BaseException:
        if isinstance(rollout_engine, RemoteEngines):
            with suppress(PublishError):  # the first failure is the one to know of
                rollout_engine.finish()
        raise
    if isinstance(rollout_engine, RemoteEngines):
        rollout_engine.finish()
    seconds = time.perf_counter() - start
    return Publication(version, mode, sent.num_tensors, sent.num_bytes, difference, seconds)


def _send(train_engine: WeightSource, rollout_engine: Receiver, version: int, mode: Mode, probe: Probe | None) -> Sent:
    try:
        sent = TRANSPORTS[mode](train_engine, rollout_engine, version)
        _check_samples(sent, rollout_engine, version)
    except PublishError:
        if isinstance(rollout_engine, RemoteEngines) and probe is not None:
            rollout_engine.all_well(False)  # the other ranks are on their way to the probe, which is collective
        raise
    return sent


def make_probe(train_engine: Scorer) -> Probe:
    """The probe of a train engine: the log-probs it would train with."""

    def probe(tokens: list[int]) -> Tensor:
        ids = torch.tensor([tokens])
        ones = torch.ones_like(ids)
        batch = DataProto.from_dict(
            tensors={
                "prompts": ids[:, :1],
                "responses": ids[:, 1:],
                "input_ids": ids,
                "attention_mask": ones,
                "position_ids": torch.arange(len(tokens))[None],
                "response_mask": ones[:, 1:],
            }
        )
        return train_engine.log_probs(batch, temperature=1.0)["log_probs"][0]

    return probe


# ---- transports


def _share(train_engine: WeightSource, rollout_engine: Receiver, version: int) -> Sent:
    """Nothing moves: both sides must hold the same storages."""
    assert not isinstance(rollout_engine, RemoteEngines), "publish() broadcasts to remote engines"
    if train_engine.sharded:
        raise PublishError("A sharded train engine holds parts of tensors, which cannot be shared; use gathered.")
    held = rollout_engine.weights()
    if held is None:
        raise PublishError(
            f"{type(rollout_engine).__name__} does not show its weights, so it cannot share; use gathered."
        )
    ours = {name: storage_of(tensor) for name, tensor in named_tensors(train_engine.module)}
    theirs = {name: storage_of(tensor) for name, tensor in held}
    for name in ours.keys() | theirs.keys():
        if ours.get(name) != theirs.get(name):
            raise PublishError(f"Tensor {name} is not the same storage in the trainer and in the rollout engine.")
    rollout_engine.set_version(version)
    return Sent(len(ours))


def _stream(train_engine: WeightSource, rollout_engine: Receiver, version: int) -> Sent:
    """Stream full tensors into the engine, keeping a sample of each for the check."""
    samples: dict[str, Tensor] = {}
    num_bytes = 0
    # shards are rounded before they are gathered: half the bytes for a half-precision engine
    target = rollout_engine.module if train_engine.sharded else None
    dtype = None if target is None else next(target.parameters()).dtype

    def stream() -> Iterator[tuple[str, Tensor]]:
        nonlocal num_bytes
        for name, tensor in train_engine.weights(dtype):
            samples[name] = sample_values(tensor, version)
            num_bytes += tensor.numel() * tensor.element_size()
            yield name, tensor

    rollout_engine.load_weights(stream(), version)
    return Sent(len(samples), num_bytes, samples)


TRANSPORTS: dict[Mode, Callable[[WeightSource, Receiver, int], Sent]] = {
    "shared": _share,
    "gathered": _stream,
    "broadcast": _stream,
}


# ---- checks


def _check_samples(sent: Sent, rollout_engine: Receiver, version: int) -> None:
    """The engine's version is the new one, and it holds the values that were sent, rounded to its own type."""
    if rollout_engine.version != version:
        raise PublishError(f"The rollout engine says it has version {rollout_engine.version} after version {version}.")
    if isinstance(rollout_engine, RemoteEngines):
        digests = rollout_engine.held(version, sent.samples)
        for name, values in sent.samples.items():
            if differing(name, values, digests):
                raise PublishError(_differs(name, version))
        return
    held = rollout_engine.weights()
    if held is None:
        return
    for name, tensor in held:
        expected = sent.samples.get(name)
        if expected is not None and not _same(expected, sample_values(tensor, version)):
            raise PublishError(_differs(name, version))


def _check_probe(
    train_engine: WeightSource,
    rollout_engine: Receiver,
    probe: Probe,
    tolerance: float | None,
    all_well: Callable[[bool], bool],
) -> float:
    if isinstance(rollout_engine, RemoteEngines):
        pairs = rollout_engine.probes(probe)
    else:
        pairs = [(probe(rollout_engine.probe_tokens()).float().cpu(), rollout_engine.probe().float().cpu())]
    distances = [float((ours - theirs).abs().mean()) for ours, theirs in pairs]
    difference = next((d for d in distances if d != d), max(distances, default=0.0))
    if tolerance is None:
        tolerance = FLOAT32_TOLERANCE if train_engine.dtype == torch.float32 else HALF_TOLERANCE
    fits = difference <= tolerance
    if not all_well(fits):  # one rank alone may see it, and all of them look for the tensor
        culprit = _first_difference(train_engine, rollout_engine)
        if fits:
            return difference  # the other one says it
        reason = (
            _differs(culprit, rollout_engine.version)
            if culprit is not None
            else "No tensor differs, so the two engines compute differently: compare their dtype and attention."
        )
        raise PublishError(
            f"The rollout engine's log-probs of fixed tokens are {difference:.3g} off the trainer's on average "
            f"(allowed: {tolerance:g}). {reason}"
        )
    return difference


def _first_difference(train_engine: WeightSource, rollout_engine: Receiver) -> str | None:
    """The first tensor that differs in any value; every rank goes through all of them."""
    if isinstance(rollout_engine, RemoteEngines):
        names = [name for name, _ in train_engine.weights()]  # a module with adapters has other names
        digests = rollout_engine.held(rollout_engine.version, names, whole=True)
        found = [name for name, tensor in train_engine.weights() if differing(name, tensor, digests)]
        return found[0] if found else None
    held = rollout_engine.weights()
    theirs = dict(held) if held is not None else {}
    culprits = [
        name
        for name, tensor in train_engine.weights()
        if name in theirs and not _same(tensor, theirs[name].to(tensor.device))
    ]
    return culprits[0] if culprits else None


def _same(expected: Tensor, held: Tensor) -> bool:
    expected = expected.to(held.dtype)
    return expected.shape == held.shape and bool(torch.isclose(expected, held, rtol=0, atol=0, equal_nan=True).all())


def _differs(name: str, version: int) -> str:
    return f"Tensor {name} in the rollout engine differs from the trainer's after publishing version {version}."
