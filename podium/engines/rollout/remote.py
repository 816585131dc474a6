"""Rollout engines in other processes, as the trainer's publish sees them, and the rollout process's side of it.

    trainer                                     rollout process
    publish(engine, RemoteEngines(channel), v)  answer_publish(channel, engine)

Weights go out in buckets. What each engine then holds comes back as digests, and its probe as log-probs, so that the
trainer can name the tensor that differs. Whoever starts both calls is the controller.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from podium.engines.rollout.buckets import DTYPES, Bucket, into_buckets
from podium.engines.rollout.channels import Channel, Message
from podium.engines.rollout.weights import sample_values
from podium.errors import PodiumError, PublishError

if TYPE_CHECKING:
    from podium.engines.rollout.base import RolloutEngine

Digests = dict[str, tuple[str, str]]
"""Of each tensor: the type it is held in, and a digest of its values (sampled, or all) in that type."""


def digest(tensor: Tensor, dtype: torch.dtype | None = None) -> str:
    """Of a tensor's values, rounded to `dtype`."""
    values = tensor.detach().to("cpu", dtype or tensor.dtype).contiguous().view(-1).view(torch.uint8)
    return hashlib.blake2b(values.numpy().tobytes(), digest_size=8).hexdigest()


class KeptWeights:
    """Copies of the last `limit` published sets in host memory: what the trainer no longer has can be sent again."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._sets: dict[int, dict[str, Tensor]] = {}

    def passing(self, weights: Iterable[tuple[str, Tensor]], version: int) -> Iterator[tuple[str, Tensor]]:
        """The same stream, of which a copy stays here."""
        if self.limit == 0 or version in self._sets:
            yield from weights
            return
        for old in sorted(self._sets)[: max(0, len(self._sets) - self.limit + 1)]:
            del self._sets[old]
        copies = {}
        for name, tensor in weights:
            copies[name] = tensor.detach().to("cpu", copy=True)
            yield name, tensor
        self._sets[version] = copies

    def of(self, version: int) -> dict[str, Tensor]:
        if version not in self._sets:
            raise PublishError(f"The weights of version {version} are not kept; there are {sorted(self._sets)}.")
        return self._sets[version]


class RemoteEngines:
    """The engines behind a channel. Without a channel: a trainer rank that only helps to gather.

    `all_well` tells the trainer's ranks whether each of them is well, before they go into a collective together.
    """

    module = None

    def __init__(
        self,
        channel: Channel | None,
        kept: KeptWeights | None = None,
        all_well: Callable[[bool], bool] = lambda well: well,
    ) -> None:
        self.channel = channel
        self.kept = kept or KeptWeights()
        self.all_well = all_well
        self.version = -1

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Send a complete set to every engine."""
        stream = self.kept.passing(weights, version)
        try:
            self.version = version if self.channel is None else self._send(self.channel, stream, version)
        finally:
            for _ in stream:  # gathering is collective: every rank goes through all of it, whatever happens
                pass

    def _send(self, channel: Channel, weights: Iterable[tuple[str, Tensor]], version: int) -> int:
        channel.say({"kind": "load", "version": version})
        for bucket in into_buckets(weights):
            channel.say({"kind": "bucket", "entries": bucket.entries}, bucket.data)
        versions = [answer["version"] for answer in self._ask({"kind": "end"})]
        return next((v for v in versions if v != version), version)

    def resend(self, version: int) -> None:
        """Publish a kept set to engines that are new, and compare every value of it."""
        weights = self.kept.of(version)
        try:
            self.load_weights(weights.items(), version)
            digests = self.held(version, weights, whole=True)
            wrong = [name for name, tensor in weights.items() if differing(name, tensor, digests)]
            if wrong or self.version != version:
                raise PublishError(
                    f"A rollout engine holds version {self.version} after version {version} was published again; "
                    f"tensors that differ: {', '.join(wrong[:3]) or 'none'}."
                )
        finally:
            self.finish()

    def held(self, version: int, names: Iterable[str], whole: bool = False) -> list[Digests]:
        """What each engine holds, by name: digests of the values a check of `version` samples, or of all values."""
        if self.channel is None:
            return []
        answers = self._ask({"kind": "digests", "version": version, "whole": whole, "names": list(names)})
        return [{name: (kind, code) for name, (kind, code) in answer["tensors"].items()} for answer in answers]

    def probes(self, ours: Callable[[list[int]], Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Log-probs of the fixed tokens: the trainer's, and each engine's."""
        tokens = [answer["tokens"] for answer in self._ask_together({"kind": "tokens"})] or [[0, 0]]
        mine = ours(tokens[0]).float().cpu()
        answers = self._ask_together({"kind": "probe"})
        return [(mine, torch.tensor(answer["log_probs"])) for answer in answers]

    def _ask_together(self, message: Message) -> list[Message]:
        """What each engine answers; nothing without a channel. The trainer's ranks leave together when it fails: a
        collective comes next."""
        answers, failure = [], None
        try:
            answers = self._ask(message) if self.channel is not None else []
        except PublishError as error:
            failure = error
        if not self.all_well(failure is None):
            raise failure or PublishError("Rank 0 of the trainer could not publish; it says why.")
        return answers

    def finish(self) -> None:
        """The publish is over, well or not."""
        if self.channel is not None:
            self.channel.say({"kind": "done"})

    def _ask(self, message: Message) -> list[Message]:
        assert self.channel is not None
        self.channel.say(message)
        answers = self.channel.hear(message["kind"])
        for rank, answer in enumerate(answers, start=1):
            if "error" in answer:
                raise PublishError(f"Rollout process {rank}: {answer['error']}")
        return answers


def answer_publish(channel: Channel, engine: RolloutEngine) -> int:
    """Take one publish from the trainer into `engine`; the version it has afterwards.

    What goes wrong here is told to the trainer, which raises it.
    """
    refused: str | None = None
    while True:
        message, _ = channel.listen()
        if message["kind"] == "done":
            return engine.version
        if message["kind"] == "load":
            refused = _load(channel, engine, message["version"])
            channel.reply({"error": refused} if refused else {"version": engine.version})
        else:
            channel.reply({"error": refused} if refused else _answer(engine, message))


def _load(channel: Channel, engine: RolloutEngine, version: int) -> str | None:
    """Feed the engine; whatever it refuses, the trainer's stream is read to its end."""
    stream = _received(channel)
    try:
        engine.load_weights(stream, version)
    except PodiumError as error:
        return str(error)
    finally:
        for _ in stream:
            pass
    return None


def _received(channel: Channel) -> Iterator[tuple[str, Tensor]]:
    while True:
        message, data = channel.listen()
        if message["kind"] == "end":
            return
        assert data is not None
        yield from Bucket([(name, shape, kind) for name, shape, kind in message["entries"]], data).tensors()


def _answer(engine: RolloutEngine, message: Message) -> dict[str, Any]:
    if message["kind"] == "tokens":
        return {"tokens": engine.probe_tokens()}
    if message["kind"] == "probe":
        return {"log_probs": engine.probe().float().tolist()}
    assert message["kind"] == "digests", message["kind"]
    tensors: Digests = {}
    wanted = set(message["names"])
    for name, tensor in engine.weights() or ():
        if name in wanted:
            values = tensor if message["whole"] else sample_values(tensor, message["version"])
            tensors[name] = (str(tensor.dtype).removeprefix("torch."), digest(values))
    return {"tensors": tensors}


def differing(name: str, tensor: Tensor, held: list[Digests]) -> bool:
    """Whether some engine holds another value under this name; engines that do not show it are passed over."""
    return any(name in one and digest(tensor, DTYPES[one[name][0]]) != one[name][1] for one in held)
