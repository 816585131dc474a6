"""HostedEngine: vLLM or SGLang in a process of its own, behind the protocol of every rollout engine.

Requests go out as they come and completions come back as they are ready; `step` waits for the next. Weights go through
shared memory. An engine whose process dies or falls silent is replaced: the new one gets the set of weights that was
last published and every request that had not finished, with the same seeds. What is said and how is host/records.py;
which process and how it ends is process.py.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from podium.engines.rollout.base import Completion, SamplingParams, StopReason, make_probe_tokens
from podium.engines.rollout.front import RequestFront
from podium.engines.rollout.host.records import Ask, Done, HostSettings, Received
from podium.engines.rollout.http_host import HttpHost
from podium.engines.rollout.process import LOOK_S, HostDied, HostProcess
from podium.engines.rollout.remote import digest
from podium.engines.rollout.request import Array, Request
from podium.engines.rollout.shared_weights import Outline, SharedWeights
from podium.engines.rollout.weights import sample_values
from podium.errors import PublishError, RolloutError
from podium.stop_points import stop_point

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """How long an engine's process may take, and how often it may be replaced."""

    start_s: float
    silence_s: float
    """Without a sign of life; also the longest a call may take."""
    max_restarts: int
    """In a row, with no request finished in between."""


class HostedEngine(RequestFront):
    """An engine in another process of this machine."""

    module = None

    def __init__(
        self, settings: HostSettings, start: Callable[[], HostProcess | HttpHost], outline: Outline, limits: Limits
    ) -> None:
        """`start`: makes the process, now and whenever another one is needed."""
        super().__init__()
        self.settings, self._start, self.outline, self.limits = settings, start, outline, limits
        self.version = 0
        self.restarts = 0
        """Processes that were replaced."""
        self._fruitless = 0
        self._next_id = 0
        self._running: dict[int, Request] = {}
        self._published: SharedWeights | None = None
        self._last: tuple[Received, list[float]] | None = None  # of the last publish: some of its values, the probe
        self._unusable: str | None = None
        self._replacing = threading.RLock()
        self.host = self._start()
        self.max_model_len = int(self.host.facts["max_model_len"])

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._surely(lambda: self.host.call(method, *arguments, limit_s=self.limits.silence_s))

    def _surely(self, action: Callable[[], T]) -> T:
        """Do something with the process; if that dies of it or before, with the next one."""
        while True:
            host = self.host
            try:
                return action()
            except HostDied as death:
                self._lost(host, death)

    def _lost(self, host: HostProcess | HttpHost, death: HostDied) -> None:
        """Replace a process, unless another thread that saw its death has."""
        with self._replacing:
            if self.host is host:
                self._replace(death)

    def _replace(self, death: HostDied) -> None:
        """A new process in the old one's place, with its weights and its unfinished requests."""
        while True:
            tail = self.host.log_tail()
            self.host.close(grace_s=0.0)
            if self._fruitless >= self.limits.max_restarts:
                raise RolloutError(
                    f"The {self.settings.engine} engine was lost {self._fruitless + 1} times without finishing a "
                    f"request: {death}. rollout.max_engine_restarts={self.limits.max_restarts} allows no more.{tail}"
                )
            self._fruitless += 1
            self.restarts += 1
            log.warning("the %s engine was lost (%s); starting another one%s", self.settings.engine, death, tail)
            try:
                self.host = self._start()
                self._restore()
                return
            except HostDied as again:
                death = again

    def _restore(self) -> None:
        if self._published is not None:
            shared, limit_s = self._published, self.limits.silence_s
            self.host.call("load", shared.files, shared.version, limit_s=limit_s)
        if self._paused:
            self.host.call("pause", limit_s=self.limits.silence_s)
        self.host.send("submit", [self._ask(number, request) for number, request in self._running.items()])

    # ---- requests

    def _admissible(self, prompt: Array, params: SamplingParams) -> None:
        low, high, vocab_size = int(prompt.min()), int(prompt.max()), self.settings.vocab_size
        bad = [token for token in (low, high, *params.stop_token_ids) if not 0 <= token < vocab_size]
        if bad:
            raise RolloutError(f"Token {bad[0]} is outside the model's vocabulary of {vocab_size} tokens.")
        total = prompt.size + params.max_tokens
        if total > self.max_model_len:
            raise RolloutError(
                f"A prompt of {prompt.size} tokens with max_tokens={params.max_tokens} makes {total}; the engine holds "
                f"{self.max_model_len}. Lower data.max_prompt_length or data.max_response_length."
            )

    def submit(self, prompt: list[int], params: SamplingParams, seed: int = 0, sample: int = 0) -> Request:
        request = super().submit(prompt, params, seed, sample)
        self._notify()
        return request

    def submit_group(self, prompt: list[int], params: SamplingParams, n: int, seed: int = 0) -> list[Request]:
        group = super().submit_group(prompt, params, n, seed)
        self._notify()
        return group

    def abort(self, request: Request) -> None:
        super().abort(request)
        self._notify()

    def pause(self) -> None:
        super().pause()
        self._notify()
        self._call("pause")

    def resume(self) -> None:
        self._call("resume")
        super().resume()

    def _notify(self) -> None:
        """A step that waits looks at its orders."""
        with self.host.news:
            self.host.news.notify_all()

    def _advance(self, arrivals: list[list[Request]], aborts: list[Request]) -> list[Request]:
        self._refuse_unusable()
        new: dict[int, Request] = {}
        for request in (request for group in arrivals for request in group):
            new[self._next_id] = request
            self._next_id += 1
        self._running |= new
        ended_ids = {id(request) for request in aborts}

        def order() -> None:
            if new:
                self.host.send("submit", [self._ask(number, request) for number, request in new.items()])
            if ended_ids:
                self.host.send("abort", [number for number, r in self._running.items() if id(r) in ended_ids])

        host = self.host
        try:
            order()
        except HostDied as death:
            self._lost(host, death)  # gives the new process all requests, the new ones included
            self._surely(lambda: self.host.send("abort", [n for n, r in self._running.items() if id(r) in ended_ids]))
        return self._surely(self._collect)

    def _collect(self) -> list[Request]:
        """The requests that have ended; waits for one, unless there are orders to take up first."""
        news, inbox = self.host.news, self.host.inbox
        with news:
            while not inbox and self._running and not (self._arrivals or self._aborts or self._paused):
                self.host.check()
                stop_point()
                news.wait(LOOK_S)
            messages = [inbox.popleft() for _ in range(len(inbox))]
        ended = []
        for kind, *content in messages:
            number = content[0].id if kind == "done" else content[0]
            request = self._running.pop(number, None)
            if request is None:
                continue  # of a process that was replaced
            if kind == "done":
                self._fruitless = 0
                request.finish(_completion(content[0]))
            else:
                request.fail(RolloutError(f"the {self.settings.engine} engine refused a request: {content[1]}"))
            ended.append(request)
        return ended

    def _ask(self, number: int, request: Request) -> Ask:
        return Ask(number, request.prompt.tolist(), request.params, mixed_seed(request.seed, request.sample))

    def _outstanding(self) -> list[Request]:
        requests, self._running = list(self._running.values()), {}
        return requests

    def _has_work(self) -> bool:
        return bool(self._running)

    def _refuse_unusable(self) -> None:
        if self._unusable is not None:
            raise RolloutError(f"The engine has no usable weights: {self._unusable} Publish a complete set first.")

    # ---- weights

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Give the engine a complete set and prove that each worker took every tensor of it."""
        self._unusable = f"loading version {version} did not finish."
        sent: Received = {}
        values: Received = {}
        dtype: torch.dtype = getattr(torch, self.settings.dtype)

        def noted() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in self.outline.checked(weights):
                sent[name] = digest(sample_values(tensor, version))
                values[name] = digest(sample_values(tensor, 0), dtype)
                yield name, tensor

        if self._published is not None:
            self._published.close()
            self._published = None
        shared = self._published = SharedWeights.write(noted(), version)
        for worker, received in enumerate(self._call("load", shared.files, version)):
            self._check_received(worker, sent, received)
        self._check_changed(values, version)
        self.version, self._unusable = version, None

    def _check_received(self, worker: int, sent: Received, received: Received) -> None:
        for name, code in sent.items():
            if received.get(name) != code:
                what = "did not arrive" if name not in received else "arrived with other values"
                raise PublishError(f"Tensor {name} {what} in worker {worker} of the {self.settings.engine} engine.")

    def _check_changed(self, values: Received, version: int) -> None:
        """Other weights that change no log-prob at all were not taken up."""
        probe = [float(value) for value in self._call("probe", self.probe_tokens())]
        if self._last is not None and self._last[0] != values and self._last[1] == probe:
            raise PublishError(
                f"The {self.settings.engine} engine computes with version {version} exactly what it did before, though "
                "the weights differ: it took them and does not use them."
            )
        self._last = (values, probe)

    def set_version(self, version: int) -> None:
        raise RolloutError(f"{self.settings.engine} shares no weights with the trainer; load_weights() publishes.")

    def weights(self) -> None:
        """Such an engine has its own layout; `load_weights` checks what arrived."""
        return None

    def probe(self) -> Tensor:
        return torch.tensor(self._call("probe", self.probe_tokens()), dtype=torch.float32)

    def probe_tokens(self) -> list[int]:
        return make_probe_tokens(self.settings.vocab_size)

    # ---- memory and end

    def sleep(self) -> None:
        """Give a GPU's memory back; requests under way are not allowed."""
        if self.settings.sleeps and self.settings.device != "cpu":
            self._call("sleep")

    def wake(self) -> None:
        if self.settings.sleeps and self.settings.device != "cpu":
            self._call("wake")

    def close(self) -> None:
        """End the process; the engine cannot be used again."""
        self.host.close()
        if self._published is not None:
            self._published.close()


def mixed_seed(seed: int, sample: int) -> int:
    """One number of 63 bits for sample `sample` of a prompt."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{sample}".encode(), digest_size=8).digest(), "little") >> 1


def _completion(done: Done) -> Completion:
    return Completion(done.token_ids, done.log_probs, done.raw_log_probs, StopReason(done.stop_reason), done.version)
