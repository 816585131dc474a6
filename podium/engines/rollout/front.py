"""The front of an in-process engine: submit, await, abort, pause, and the synchronous `generate` on top of them.

Orders (new requests, aborts) are left in queues and taken up at the start of the next step, so a coroutine can submit
while the engine computes in another thread. What a step does is the engine's: it implements `_advance`, `_admissible`,
`_outstanding` and `_has_work`.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from podium.engines.rollout.base import Completion, ImagePrompt, SamplingParams
from podium.engines.rollout.request import Array, Request, Watched
from podium.errors import RolloutError
from podium.stop_points import stop_point


def refuse_images(engine: object) -> None:
    """Raise unless the engine shows the model the images of a prompt."""
    if not getattr(engine, "takes_images", False):
        raise RolloutError(
            f"{type(engine).__name__} cannot show the model the images of a prompt. Use a vision model with "
            "rollout.name=hf, or with native on a CPU."
        )


class RequestFront(ABC):
    """Requests in, completions out, one step at a time."""

    version: int
    takes_images: bool = False

    def __init__(self) -> None:
        self._arrivals: deque[list[Request]] = deque()
        self._aborts: deque[Request] = deque()
        self._lock = threading.RLock()
        self._paused = False
        self._driver: asyncio.Task[None] | None = None
        self._watched = Watched(self._ensure_driven, self.abort)

    # ---- the engine's part

    @abstractmethod
    def _admissible(self, prompt: Array, params: SamplingParams) -> None:
        """Raise a RolloutError for a request that can never run."""

    @abstractmethod
    def _advance(self, arrivals: list[list[Request]], aborts: list[Request]) -> list[Request]:
        """Take up the orders and advance what runs; the requests that ended. No tokens are made while paused."""

    @abstractmethod
    def _outstanding(self) -> list[Request]:
        """Every unfinished request taken up so far, forgotten by the engine from here on."""

    @abstractmethod
    def _has_work(self) -> bool:
        """True while a request taken up is unfinished."""

    @contextmanager
    def _generating(self) -> Iterator[None]:
        """Around steps: the engine's chance to set up what steps need, and to restore it."""
        yield

    # ---- requests

    def submit(self, prompt: list[int], params: SamplingParams, seed: int = 0, sample: int = 0) -> Request:
        """Queue sample number `sample` of a prompt; await the request, or step() until it is done."""
        group = self._make_group(prompt, params, seed, [sample])
        self._arrivals.append(list(group))
        return group[0]

    def submit_group(self, prompt: list[int], params: SamplingParams, n: int, seed: int = 0) -> list[Request]:
        """Queue samples 0 to n-1 of a prompt, which share its KV."""
        group = self._make_group(prompt, params, seed, list(range(n)))
        self._arrivals.append(list(group))
        return group

    def _make_group(self, prompt: list[int], params: SamplingParams, seed: int, samples: list[int]) -> list[Request]:
        if not samples:
            raise RolloutError("n samples of a prompt were asked for with n below 1; n must be at least 1.")
        tokens = np.asarray(prompt, dtype=np.int64)
        if tokens.ndim != 1 or tokens.size == 0:
            raise RolloutError(f"A prompt must be a list of at least one token id; got {prompt!r}.")
        self._admissible(tokens, params)
        group = [Request(self._watched, tokens, params, seed, sample) for sample in samples]
        if isinstance(prompt, ImagePrompt):
            refuse_images(self)
            for request in group:
                request.images = prompt.images
        return group

    def step(self) -> list[Request]:
        """Advance every running request by a token; the requests that ended."""
        with self._lock, self._generating():
            arrivals = [self._arrivals.popleft() for _ in range(len(self._arrivals))]
            aborts = [self._aborts.popleft() for _ in range(len(self._aborts))]
            try:
                return self._advance(arrivals, aborts)
            except BaseException as error:
                for request in [*self._outstanding(), *(r for group in arrivals for r in group)]:
                    if not request.done:
                        request.fail(error)
                raise

    def generate(
        self, prompts: list[list[int]], params: SamplingParams, n: int = 1, seeds: list[int] | None = None
    ) -> list[list[Completion]]:
        """`n` completions per prompt; see RolloutEngine."""
        if seeds is not None and len(seeds) != len(prompts):
            raise RolloutError(f"{len(seeds)} seeds were given for {len(prompts)} prompts; give one seed per prompt.")
        if self._paused:
            raise RolloutError("The engine is paused, so generate() would wait for ever; call resume() first.")
        seeds = list(range(len(prompts))) if seeds is None else seeds
        samples = list(range(n))
        groups = [self._make_group(p, params, seed, samples) for p, seed in zip(prompts, seeds, strict=True)]
        self._arrivals.extend(list(group) for group in groups)  # the engine takes its copy of a group apart
        with self._lock, self._generating():
            for group in groups:
                while not all(request.done for request in group):
                    stop_point()
                    self.step()
        return [[request.result() for request in group] for group in groups]

    def abort(self, request: Request) -> None:
        """End a request at the next step, with what it has written."""
        if not request.done:
            self._aborts.append(request)

    def pause(self) -> None:
        """Stop making tokens; requests stay, and may be submitted and aborted."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._driver is not None and not self._driver.get_loop().is_closed():
            self._driver.get_loop().call_soon_threadsafe(self._ensure_driven)

    # ---- the driver: steps while somebody awaits

    def _ensure_driven(self) -> None:
        """Called in an event loop: make sure that a task there steps the engine."""
        loop = asyncio.get_running_loop()
        if self._driver is None or self._driver.done() or self._driver.get_loop() is not loop:
            self._driver = loop.create_task(self._drive(), name="podium-rollout-driver")

    async def _drive(self) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="podium-rollout") as pool:
            while self._arrivals or self._aborts or (self._has_work() and not self._paused):
                await asyncio.sleep(0)  # whoever is ready submits before the step
                stepped = loop.run_in_executor(pool, self.step)
                await asyncio.wait([stepped])
                if stepped.exception() is not None:
                    return  # every waiting request carries the error
