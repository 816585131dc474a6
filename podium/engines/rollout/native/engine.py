"""NativeEngine: Podium's own rollout engine, on the trainer's module or on one of its own.

It puts the parts together: requests from the front, the scheduler's batches through the runner, pages in a KV cache
that sleeps and wakes. On a GPU the next pass is launched before the last one's tokens are read, so the device never
waits for the host; whatever needs the exact state (abort, preemption, new weights, sleep) lands the passes under way
first. It does not know where published weights come from.
"""

from __future__ import annotations

import importlib.util
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from podium.config.schema import RolloutConfig
from podium.engines.rollout.base import SamplingParams
from podium.engines.rollout.inprocess import ModuleEngine
from podium.engines.rollout.native.blocks import BlockPool, BlockTables
from podium.engines.rollout.native.body import layer_size
from podium.engines.rollout.native.kv import KVShape, PagedKV
from podium.engines.rollout.native.runner import BatchRunner, Flight, Runner
from podium.engines.rollout.native.scheduler import Batch, Scheduler
from podium.engines.rollout.native.slots import Slots
from podium.engines.rollout.request import Array, Request
from podium.errors import ConfigError, RolloutError
from podium.models.attention import ATTENTION_NAME, install_attention

logger = logging.getLogger(__name__)

DEVICE_RESERVE = 2 << 30
"""Bytes of a GPU left to what a pass computes with."""
CONTINUING = {"cpu": 3e6, "cuda": 2.4e10}
"""Operations that a device does while one layer of one sequence is continued from its pages: about 60 µs."""


def fewest_to_keep(module: PreTrainedModel, device: torch.device) -> int:
    """Tokens whose keys and values are dearer to compute again than to go on from."""
    return int(CONTINUING.get(device.type, 0.0) / (2 * layer_size(module)))


class NativeEngine(ModuleEngine):
    """Continuous batching over a paged KV cache, on the module's own parameters."""

    def __init__(
        self,
        module: PreTrainedModel,
        config: RolloutConfig | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`dtype`: compute type, the module's own when None. The tokenizer is needed for stop strings only."""
        super().__init__(module, tokenizer)
        config = config or RolloutConfig()
        if not 1 <= config.max_num_seqs <= config.max_num_batched_tokens:
            raise ConfigError(
                f"rollout.max_num_seqs={config.max_num_seqs} must be at least 1 and at most "
                f"rollout.max_num_batched_tokens={config.max_num_batched_tokens}: each sequence takes a token per pass."
            )
        if module.config._attn_implementation != ATTENTION_NAME:
            install_attention(module)
        dtype = dtype or next(module.parameters()).dtype
        shape = KVShape.of(module.config, dtype)
        num_blocks = self._num_blocks(config, shape)
        self.runner = self._make_runner(config, dtype, num_blocks)
        self.takes_images = self.image_token is not None and isinstance(self.runner, Runner)
        slots = Slots(config.max_num_seqs, self.rules)
        tables = BlockTables(BlockPool(num_blocks, config.block_size), config.max_num_seqs)
        self.scheduler = Scheduler(slots, tables, config.max_num_batched_tokens, self.runner.window)
        self.scheduler.held.fewest_tokens = fewest_to_keep(module, self.device)
        self._cache_args = (shape, num_blocks, config.block_size, self.device)
        self.cache: PagedKV | None = PagedKV(*self._cache_args)
        self._flights: deque[tuple[Batch, Flight]] = deque()
        self._ended: list[Request] = []
        self._released: deque[Request] = deque()

    def _make_runner(self, config: RolloutConfig, dtype: torch.dtype, num_blocks: int) -> BatchRunner:
        if self.device.type != "cuda":
            return Runner(self.module, dtype)
        if importlib.util.find_spec("triton") is None:
            logger.warning("Triton is not installed: rollouts decode without CUDA graphs, several times slower.")
            return Runner(self.module, dtype)
        from podium.engines.rollout.native.gpu.runner import GraphRunner

        longest = num_blocks if self.max_model_len is None else -(-self.max_model_len // config.block_size)
        return GraphRunner(self.module, dtype, config.max_num_seqs, min(num_blocks, longest), self.rules)

    def _num_blocks(self, config: RolloutConfig, shape: KVShape) -> int:
        """Pages that fit the memory allowed, but no more than could ever be used."""
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            budget = max(0, min(free - DEVICE_RESERVE, int(config.gpu_memory_utilization * total)))
            setting = f"rollout.gpu_memory_utilization={config.gpu_memory_utilization}"
        else:
            budget = int(config.kv_cache_gb * (1 << 30))
            setting = f"rollout.kv_cache_gb={config.kv_cache_gb}"
        page = shape.bytes_per_token() * config.block_size
        if budget < page:
            raise RolloutError(
                f"{setting} leaves {budget} bytes for the KV cache; one page of {config.block_size} tokens takes "
                f"{page} ({shape.bytes_per_token()} bytes per token). Raise it."
            )
        if self.max_model_len is None:
            return budget // page
        return min(budget // page, config.max_num_seqs * -(-self.max_model_len // config.block_size))

    # ---- steps

    def _admissible(self, prompt: Array, params: SamplingParams) -> None:
        super()._admissible(prompt, params)
        self.scheduler.check_fits(prompt.size, params)

    def _advance(self, arrivals: list[list[Request]], aborts: list[Request]) -> list[Request]:
        scheduler = self.scheduler
        while self._released:
            scheduler.held.release(self._released.popleft())
        scheduler.waiting.extend(arrivals)
        if aborts or self._paused:
            self._land_all()
        for request in aborts:
            if not request.done:
                scheduler.abort(request, self.version)
                self._ended += [request] if request.done else []
        if not self._paused and scheduler.has_work():
            self._refuse_unusable()
            if self.cache is None:
                raise RolloutError("The engine sleeps, so it cannot generate; call wake() first.")
            batch = scheduler.schedule(self.version, may_preempt=not self._flights)
            if batch is not None:
                self._flights.append((batch, self.runner.launch(batch, scheduler, self.cache)))
            if batch is None or len(self._flights) > self.runner.lookahead:
                self._land()
        if not scheduler.has_work():
            self._land_all()
        ended, self._ended = self._ended, []
        return ended

    # ---- turns of an episode

    def submit_turn(
        self, prompt: list[int], params: SamplingParams, seed: int, sample: int, previous: Request | None
    ) -> Request:
        """Queue the next turn of an episode, whose prompt begins with all of the `previous` one; what was computed for
        that is not computed again, where it is still at hand. Call `release` when no turn follows."""
        (request,) = self._make_group(prompt, params, seed, [sample])
        request.is_continued, request.previous = True, previous
        self._arrivals.append([request])
        return request

    def keep(self, requests: Sequence[Request]) -> None:
        """Requests just submitted may be continued."""
        for request in requests:
            request.is_continued = True

    def release(self, request: Request) -> None:
        """No turn follows this one."""
        request.is_continued = False
        self._released.extend(r for r in (request, request.previous) if r is not None)
        request.previous = None

    def _land(self) -> None:
        """Wait for the oldest pass under way and take in its tokens."""
        batch, flight = self._flights.popleft()
        tokens, log_probs, raw_log_probs = flight.land()
        given = np.arange(tokens.shape[1]) < batch.counts[:, None]
        if not np.isfinite(raw_log_probs[given]).all():
            self.runner.reset()
            if self.cache is not None:  # a NaN left in a page would spread to its next owner
                self.cache = None  # first: a device has no room for two
                self.cache = PagedKV(*self._cache_args)
            raise RolloutError(
                f"The model (weights version {self.version}) gave non-finite log-probs. Its weights have diverged: "
                "lower the learning rate, or go back to an earlier checkpoint."
            )
        self._ended += self.scheduler.commit(batch, tokens, log_probs, raw_log_probs)

    def _land_all(self) -> None:
        while self._flights:
            self._land()

    def _outstanding(self) -> list[Request]:
        self._flights.clear()
        return self.scheduler.forget_all()

    def _has_work(self) -> bool:
        return self.scheduler.has_work()

    @contextmanager
    def _generating(self) -> Iterator[None]:
        """Kernels launch on the device that is current, which need not be the module's."""
        with super()._generating(), torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            yield

    # ---- weights and memory

    def _drop_computed(self) -> None:
        self._land_all()
        self.scheduler.preempt_all()
        self.runner.model.expect_new_weights()

    def probe(self) -> Tensor:
        """Log-probs [P-1] of `probe_tokens()` in one packed pass of what the engine runs."""
        with self._lock, self._generating():
            self._bring_back_weights()
            self.runner.model.refresh()
            return self.runner.model.log_probs(self.probe_tokens()).float().cpu()

    def sleep(self) -> None:
        """Free the KV cache, and the weights where they are the engine's own copy. Requests under way start again from
        what they have written, after wake()."""
        with self._lock:
            self._drop_computed()
            self.cache = None
            if self._owns_weights:
                self.runner.model.body.forget()
            self._put_weights_away()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def wake(self) -> None:
        with self._lock:
            self._bring_back_weights()
            if self.cache is None:
                self.cache = PagedKV(*self._cache_args)
