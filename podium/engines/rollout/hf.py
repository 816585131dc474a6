"""HFEngine: plain transformers `generate`, the slow reference.

It keeps the contract of the native engine, down to the random numbers: our sampler sits in a logits processor that
leaves only the drawn token, so both engines give the same samples. A step answers all waiting requests in one padded
batch after another; nothing joins or leaves a batch under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)

from podium.config.schema import RolloutConfig
from podium.engines.rollout.base import StopReason
from podium.engines.rollout.inprocess import ModuleEngine
from podium.engines.rollout.native.runner import sampling_rows
from podium.engines.rollout.native.sampling import sample_tokens
from podium.engines.rollout.native.slots import Slots
from podium.engines.rollout.request import Request, Written
from podium.models.load import backbone
from podium.models.vision import attention_by_part, image_places, merge_images
from podium.stop_points import stop_point


class HFEngine(ModuleEngine):
    """`module.generate` on left-padded batches of at most `max_num_seqs` requests."""

    def __init__(
        self,
        module: PreTrainedModel,
        config: RolloutConfig | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        super().__init__(module, tokenizer)
        self.max_num_seqs = (config or RolloutConfig()).max_num_seqs
        self.takes_images = self.image_token is not None
        self._waiting: deque[Request] = deque()

    def _advance(self, arrivals: list[list[Request]], aborts: list[Request]) -> list[Request]:
        self._waiting.extend(request for group in arrivals for request in group)
        ended = [request for request in aborts if request in self._waiting]
        for request in ended:
            self._waiting.remove(request)
            request.finish(Written.nothing(self.version).completion(StopReason.ABORTED))
        if self._paused or not self._waiting:
            return ended
        self._refuse_unusable()
        batch = [self._waiting.popleft() for _ in range(min(self.max_num_seqs, len(self._waiting)))]
        try:
            return ended + self._answer(batch)
        except BaseException:
            self._waiting.extendleft(reversed(batch))
            raise

    def _answer(self, batch: list[Request]) -> list[Request]:
        slots = Slots(len(batch), self.rules)
        for slot, request in enumerate(batch):
            slots.place(np.array([slot]), [request], self.version)
        width = max(request.prompt.size for request in batch)
        input_ids = torch.zeros(len(batch), width, dtype=torch.long)
        mask = torch.zeros_like(input_ids)
        for row, request in enumerate(batch):
            input_ids[row, width - request.prompt.size :] = torch.from_numpy(request.prompt)
            mask[row, width - request.prompt.size :] = 1
        draw = _DrawOne(slots)
        with torch.no_grad(), self._plain_attention():
            generate: Any = self.module.generate
            generate(
                **self._inputs(input_ids.to(self.device), batch),
                attention_mask=mask.to(self.device),
                logits_processor=LogitsProcessorList([draw]),
                stopping_criteria=StoppingCriteriaList([_AllEnded(draw)]),
                max_new_tokens=max(request.params.max_tokens for request in batch),
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        return batch

    def _inputs(self, input_ids: Tensor, batch: list[Request]) -> dict[str, Tensor]:
        """The left-padded prompts, as embeddings where some have images."""
        shown = [(row, request) for row, request in enumerate(batch) if request.images is not None]
        if not shown:
            return {"inputs": input_ids}
        assert self.image_token is not None, "refused when it was submitted"
        width = input_ids.shape[1]
        places = [
            row * width + width - request.prompt.size + image_places(request.prompt, self.image_token)
            for row, request in shown
        ]
        at = torch.from_numpy(np.concatenate(places)).to(self.device)
        images = [request.images for _, request in shown]
        merged = merge_images(backbone(self.module), input_ids.reshape(-1), images, at)
        return {"inputs_embeds": merged.unflatten(0, tuple(input_ids.shape))}

    @contextmanager
    def _plain_attention(self) -> Iterator[None]:
        """transformers' own attention while it generates; the module keeps the one it came with."""
        installed = self.module.config._attn_implementation
        self.module.set_attn_implementation("sdpa")
        try:
            yield
        finally:
            self.module.set_attn_implementation(attention_by_part(self.module.config, installed))

    def _outstanding(self) -> list[Request]:
        requests = list(self._waiting)
        self._waiting.clear()
        return requests

    def _has_work(self) -> bool:
        return bool(self._waiting)

    def probe(self) -> Tensor:
        """Log-probs [P-1] of `probe_tokens()` by a plain forward pass."""
        tokens = torch.tensor([self.probe_tokens()], device=self.device)
        with self._lock, self._generating(), torch.no_grad(), self._plain_attention():
            log_probs: Tensor = self.module(input_ids=tokens, use_cache=False).logits.float().log_softmax(-1)
        return log_probs[0, :-1].gather(1, tokens[0, 1:, None]).squeeze(1).cpu()

    def sleep(self) -> None:
        """Nothing to free: transformers keeps no cache between calls."""

    def wake(self) -> None: ...


class _DrawOne(LogitsProcessor):
    """Samples a token per unfinished row, records it, and leaves it as the only choice."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.alive = np.arange(len(slots.requests))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        stop_point()
        choice = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        if self.alive.size:
            alive = torch.from_numpy(self.alive).to(scores.device)
            rows = sampling_rows(self.slots, self.alive, self.slots.num_written[self.alive], scores.device)
            tokens, log_probs, raw = sample_tokens(scores[alive].float(), rows)
            choice[alive] = tokens
            columns = (column[:, None].cpu().numpy() for column in (tokens, log_probs, raw))
            for slot, completion in self.slots.record(self.alive, *columns):
                self.slots.clear(slot).finish(completion)
            self.alive = np.flatnonzero(self.slots.state)
        return torch.full_like(scores, float("-inf")).scatter_(1, choice[:, None], 0.0)


class _AllEnded(StoppingCriteria):
    """Stops when no row is left to draw for."""

    def __init__(self, draw: _DrawOne) -> None:
        self.draw = draw

    def __call__(self, input_ids: Tensor, scores: Tensor, **_kwargs: object) -> Tensor:
        return torch.full((len(input_ids),), self.draw.alive.size == 0, device=input_ids.device)
