"""A rollout engine that writes what a script says, one token of every running request per step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from podium.engines.rollout.base import Completion, SamplingParams, StopReason
from podium.engines.rollout.front import RequestFront
from podium.engines.rollout.request import Array, Request

LOG_PROB = -0.5


class ScriptedEngine(RequestFront):
    """`script(context, sample)` is what the model writes after `context`; `<eos>` in it is the end token."""

    def __init__(
        self, tokenizer: Any, script: Callable[[str, int], str], step_s: float = 0.0, slots: int = 1000
    ) -> None:
        super().__init__()
        self.tokenizer, self.script, self.step_s, self.slots = tokenizer, script, step_s, slots
        self.version = 7
        self.num_steps = 0
        self.prompts: list[list[int]] = []
        self._waiting: deque[Request] = deque()
        self._running: dict[Request, tuple[list[int], list[int]]] = {}

    def _admissible(self, prompt: Array, params: SamplingParams) -> None: ...

    def _advance(self, arrivals: list[list[Request]], aborts: list[Request]) -> list[Request]:
        self._waiting.extend(request for group in arrivals for request in group)
        ended = []
        for request in aborts:
            written = self._running.pop(request, ([], []))[0]
            if request in self._waiting:
                self._waiting.remove(request)
            self._finish(request, written, StopReason.ABORTED)
            ended.append(request)
        if self._paused:
            return ended
        while self._waiting and len(self._running) < self.slots:
            request = self._waiting.popleft()
            self.prompts.append(request.prompt.tolist())
            text = self.script(self.tokenizer.decode(request.prompt.tolist()), request.sample)
            self._running[request] = ([], self._encode(text))
        self.num_steps += 1
        if self.step_s:
            time.sleep(self.step_s)
        for request, (written, rest) in list(self._running.items()):
            written.append(rest.pop(0))
            reason = self._reason(request, written, rest)
            if reason is not None:
                del self._running[request]
                self._finish(request, written, reason)
                ended.append(request)
        return ended

    def _encode(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text.replace("<eos>", self.tokenizer.eos_token), add_special_tokens=False)
        return list(ids)

    def _reason(self, request: Request, written: list[int], rest: list[int]) -> StopReason | None:
        if written[-1] == self.tokenizer.eos_token_id:
            return StopReason.EOS
        text = self.tokenizer.decode(written)
        if any(stop in text for stop in request.params.stop):
            return StopReason.STOP
        if len(written) >= request.params.max_tokens:
            return StopReason.LENGTH
        assert rest, f"the script ends without an end: {text!r}"
        return None

    def _finish(self, request: Request, written: list[int], reason: StopReason) -> None:
        log_probs = [LOG_PROB] * len(written)
        request.finish(Completion(list(written), log_probs, log_probs, reason, self.version))

    def _outstanding(self) -> list[Request]:
        requests = [*self._waiting, *self._running]
        self._waiting.clear()
        self._running.clear()
        return requests

    def _has_work(self) -> bool:
        return bool(self._waiting or self._running)
