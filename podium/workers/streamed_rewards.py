"""Rewards beside generation: each group of responses is handed to the reward processes as soon as it is finished.

The engine is stepped here instead of being asked for a whole batch, so that the processes score early responses while
later ones are still being written. What is left when the last token is written is one group's rewards, not the batch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from podium.engines.rollout.base import Completion, RolloutEngine, SamplingParams
from podium.engines.rollout.front import RequestFront
from podium.engines.rollout.request import Request
from podium.protocol import DataProto
from podium.rewards.manager import Scorer, make_rows
from podium.rewards.records import Outcome
from podium.stop_points import result_of, stop_point


class StreamedRewards:
    def __init__(self, scorer: Scorer, tokenizer: Any) -> None:
        self.scorer, self.tokenizer = scorer, tokenizer

    def generate(
        self,
        engine: RolloutEngine,
        data: DataProto,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        n: int,
        seeds: Sequence[int],
    ) -> tuple[list[list[Completion]], list[Outcome]]:
        """Completions by prompt, and the outcome of each in the same order."""
        groups = [_submit_group(engine, prompt, params, n, s) for prompt, s in zip(prompts, seeds, strict=True)]
        pending: dict[int, list[Future[Outcome]]] = {}
        waiting = set(range(len(groups)))
        place_of = {id(request): place for place, group in enumerate(groups) for request in group}
        while waiting:
            stop_point()
            touched = {place_of[id(request)] for request in engine.step() if id(request) in place_of}
            for place in sorted(touched & waiting):
                if all(request.done for request in groups[place]):
                    waiting.remove(place)
                    pending[place] = self._submit(data, place, groups[place])
        outcomes = [result_of(future) for place in range(len(groups)) for future in pending[place]]
        return [[request.result() for request in group] for group in groups], outcomes

    def _submit(self, data: DataProto, place: int, group: Sequence[Request]) -> list[Future[Outcome]]:
        texts = [str(self.tokenizer.decode(r.result().token_ids, skip_special_tokens=True)) for r in group]
        return self.scorer.submit(make_rows(data.select_idxs([place] * len(group)), texts))


def _submit_group(engine: RolloutEngine, prompt: list[int], params: SamplingParams, n: int, seed: int) -> list[Request]:
    if isinstance(engine, RequestFront):
        return engine.submit_group(prompt, params, n, seed)  # the samples share the prompt's KV
    return [engine.submit(prompt, params, seed, sample) for sample in range(n)]
