"""An engine small enough to be understood: each token is the one before plus the seed plus one.

It runs in a process of its own like vLLM and SGLang do. `engine_kwargs` make it misbehave. With `gate`, a folder, every
request waits after its 50th token: the file `reached` says that one has come there, the file `open` lets them go on.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
from pathlib import Path
from typing import Any

import torch

from podium.engines.rollout.base import StopReason
from podium.engines.rollout.buckets import Bucket
from podium.engines.rollout.host.records import Ask, Done, HostSettings, Received, WeightFile
from podium.engines.rollout.remote import digest
from podium.engines.rollout.weights import sample_values

TOKEN_S = 0.002
GATE_AT = 50


def written(prompt: list[int], seed: int, count: int, vocab_size: int) -> list[int]:
    return [(prompt[-1] + (seed + 1) * (place + 1)) % vocab_size for place in range(count)]


class ToyBackend:
    def __init__(self, settings: HostSettings) -> None:
        self.settings, self.faults = settings, settings.engine_kwargs
        self.version, self.level = 0, 0.0
        self.aborted: set[int] = set()
        self.go = asyncio.Event()
        self.go.set()
        self.num_made = 0

    async def start(self) -> dict[str, Any]:
        if self.faults.get("refuses"):
            raise ValueError("this engine does not like its settings")
        if self.faults.get("dies_at_start"):
            os._exit(3)
        return {"version": "1.0", "max_model_len": 10_000}

    async def generate(self, ask: Ask) -> Done:
        if ask.prompt[0] == self.settings.vocab_size - 1:
            raise ValueError("no such prompt")
        tokens: list[int] = []
        version, reason = self.version, StopReason.LENGTH
        for token in written(ask.prompt, ask.seed, ask.params.max_tokens, self.settings.vocab_size):
            while not self.go.is_set() and ask.id not in self.aborted:
                await asyncio.sleep(TOKEN_S)
            if ask.id in self.aborted:
                reason = StopReason.ABORTED
                break
            await asyncio.sleep(TOKEN_S)
            tokens.append(token)
            if len(tokens) == GATE_AT:
                await self._pass_gate()
            self.num_made += 1
            if self.num_made == self.faults.get("dies_after"):
                os.kill(os.getpid(), signal.SIGKILL)
        values = [self.level] * len(tokens)
        return Done(ask.id, tokens, values, values, str(reason), version)

    async def _pass_gate(self) -> None:
        gate = Path(self.faults["gate"]) if "gate" in self.faults else None
        if gate is not None:
            (gate / "reached").touch()
            while not (gate / "open").exists():
                await asyncio.sleep(TOKEN_S)

    async def abort(self, ids: list[int]) -> None:
        self.aborted.update(ids)

    async def pause(self) -> None:
        self.go.clear()

    async def resume(self) -> None:
        self.go.set()

    async def load(self, files: list[WeightFile], version: int) -> list[Received]:
        received, total = {}, 0.0
        for file in files:
            data = torch.from_file(file.path, shared=False, size=file.num_bytes, dtype=torch.uint8)
            for name, tensor in Bucket(file.entries, data).tensors():
                if name != self.faults.get("loses"):
                    received[name] = digest(sample_values(tensor, version))
                total += float(tensor.double().sum())
        self.version = version
        if not self.faults.get("ignores"):
            self.level = -math.log1p(abs(total))
        return [received] * self.settings.tensor_parallel_size

    async def probe(self, tokens: list[int]) -> list[float]:
        return [self.level] * (len(tokens) - 1)

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def check_alive(self) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None: ...
