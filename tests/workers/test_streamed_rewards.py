"""A group is handed to the rewards as soon as it is finished, while the engine still writes others."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import torch

from podium.engines.rollout.base import Completion, SamplingParams, StopReason
from podium.protocol import DataProto
from podium.rewards.records import scored
from podium.workers.streamed_rewards import StreamedRewards


class ScriptedEngine:
    """Finishes one request a step, the last submitted first."""

    def __init__(self, events: list[str]) -> None:
        self.events, self.open = events, []

    def submit(self, prompt: list[int], params: SamplingParams, seed: int = 0, sample: int = 0) -> Any:
        request = SimpleNamespace(done=False, prompt=prompt, sample=sample)
        completion = Completion([prompt[0], sample], [0.0, 0.0], [0.0, 0.0], StopReason.EOS, 0)
        request.result = lambda: completion
        self.open.append(request)
        return request

    def step(self) -> list[Any]:
        request = self.open.pop()
        request.done = True
        self.events.append(f"wrote {request.prompt[0]}.{request.sample}")
        return [request]


def test_finished_groups_are_scored_while_others_are_written() -> None:
    events: list[str] = []

    class Scorer:
        def submit(self, rows: Any) -> list[Future[Any]]:
            events.append("scored " + ",".join(f"{row.uid}:{row.response}" for row in rows))
            futures: list[Future[Any]] = [Future() for _ in rows]
            for row, future in zip(rows, futures, strict=True):
                future.set_result(scored({"score": float(row.response.split()[0])}))
            return futures

    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: " ".join(map(str, ids)))
    data = DataProto.from_dict(
        {"prompts": torch.zeros(2, 1)},
        {"uid": ["a", "b"], "data_source": ["t"] * 2, "ground_truth": ["5"] * 2, "extra_info": [{}] * 2},
    )
    rewards = StreamedRewards(Scorer(), tokenizer)  # type: ignore[arg-type]
    groups, outcomes = rewards.generate(
        ScriptedEngine(events),
        data,
        [[7], [8]],
        SamplingParams(4),
        n=2,
        seeds=[0, 1],  # type: ignore[arg-type]
    )
    assert events == ["wrote 8.1", "wrote 8.0", "scored b:8 0,b:8 1", "wrote 7.1", "wrote 7.0", "scored a:7 0,a:7 1"]
    assert [[c.token_ids for c in group] for group in groups] == [[[7, 0], [7, 1]], [[8, 0], [8, 1]]]
    assert [outcome.values["score"] for outcome in outcomes] == [7.0, 7.0, 8.0, 8.0]
