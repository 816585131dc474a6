"""vLLM behind the `Backend` protocol: tokens in, tokens and their log-probs out.

End-of-sequence tokens are ordinary stop tokens here and stop strings are looked for by Podium's own rules, so a
response ends where the native engine would end it. Log-probs are those of the distribution a token was drawn from.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
from collections.abc import AsyncGenerator
from typing import Any

from podium.engines.rollout.base import StopReason
from podium.engines.rollout.host.arguments import merged
from podium.engines.rollout.host.records import Ask, Done, HostSettings, Received, WeightFile
from podium.engines.rollout.host.stops import StopWatch, stop_tokens

OURS = {
    "model": "actor_rollout_ref.model.path",
    "dtype": "actor_rollout_ref.model.dtype",
    "trust_remote_code": "actor_rollout_ref.model.trust_remote_code",
    "tensor_parallel_size": "rollout.tensor_model_parallel_size",
    "max_num_seqs": "rollout.max_num_seqs",
    "max_num_batched_tokens": "rollout.max_num_batched_tokens",
    "gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "logprobs_mode": "",
    "skip_tokenizer_init": "",
    "weight_transfer_config": "",
    "worker_extension_cls": "",
}
"""Arguments of vLLM that Podium sets, and the setting to use instead; empty: it has to be as it is."""


class VLLMBackend:
    def __init__(self, settings: HostSettings) -> None:
        self.settings = settings
        self.version = 0
        self.is_paused = False
        self.running: set[int] = set()

    async def start(self) -> dict[str, Any]:
        self._set_environment()
        import vllm
        from vllm.config import WeightTransferConfig
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from podium.engines.rollout.host.vllm_transfer import BACKEND, Receiver

        settings, on_cpu = self.settings, self.settings.device == "cpu"
        ours: dict[str, Any] = {
            "model": settings.model,
            "dtype": settings.dtype,
            "trust_remote_code": settings.trust_remote_code,
            "tensor_parallel_size": settings.tensor_parallel_size,
            "max_num_seqs": settings.max_num_seqs,
            "max_num_batched_tokens": settings.max_num_batched_tokens,
            "logprobs_mode": "processed_logprobs",
            "skip_tokenizer_init": True,
            "weight_transfer_config": WeightTransferConfig(backend=BACKEND),
            "worker_extension_cls": f"{Receiver.__module__}.{Receiver.__qualname__}",
        }
        if not on_cpu:
            ours["gpu_memory_utilization"] = settings.gpu_memory_utilization
        defaults = {"enforce_eager": on_cpu, "disable_log_stats": True, "seed": 0, "enable_prefix_caching": True}
        if on_cpu:  # vLLM 0.32 dies there when a prompt with a seed is computed in two pieces
            longest = settings.engine_kwargs.get("max_model_len") or settings.max_positions
            ours["max_num_batched_tokens"] = max(settings.max_num_batched_tokens, longest)
            defaults["enable_chunked_prefill"] = False
        if settings.sleeps and not on_cpu:
            defaults["enable_sleep_mode"] = True
        names = [field.name for field in dataclasses.fields(AsyncEngineArgs)]
        arguments = merged("vLLM", names, ours, defaults, settings.engine_kwargs, OURS)
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        await self.engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info={}))
        self.stops = StopWatch(settings)
        return {"version": vllm.__version__, "max_model_len": self.engine.model_config.max_model_len}

    def _set_environment(self) -> None:
        """Before vLLM is imported; what the user has set stays."""
        defaults = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
        if self.settings.device == "cpu":
            defaults |= {
                "VLLM_CPU_KVCACHE_SPACE": str(max(1, math.ceil(self.settings.kv_cache_gb))),
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer computes on the same cores, at other times
                "TORCHDYNAMO_DISABLE": "1",  # compiling two small functions takes 15 s and gains nothing there
            }
        for name, value in defaults.items():
            os.environ.setdefault(name, value)

    # ---- requests

    async def generate(self, ask: Ask) -> Done:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params, watched = ask.params, bool(ask.params.stop)
        sampling = SamplingParams(
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            seed=None if params.temperature == 0 else ask.seed,
            stop_token_ids=stop_tokens(self.settings, params),
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA if watched else RequestOutputKind.FINAL_ONLY,
        )
        self.running.add(ask.id)
        outputs = self.engine.generate({"prompt_token_ids": ask.prompt}, sampling, str(ask.id))
        try:
            return await self._gather(ask, outputs)
        finally:
            self.running.discard(ask.id)

    async def _gather(self, ask: Ask, outputs: AsyncGenerator[Any, None]) -> Done:
        version = self.version
        tokens: list[int] = []
        log_probs: list[float] = []
        reason = StopReason.LENGTH
        async for output in outputs:
            part = output.outputs[0]
            tokens += part.token_ids
            log_probs += [at[token].logprob for at, token in zip(part.logprobs or (), part.token_ids, strict=True)]
            if part.finish_reason is not None:
                reason = self._reason(ask, part)
                version = oldest_version(part, version)
            if ask.params.stop and (end := self.stops.end(ask.params, tokens, len(tokens) - len(part.token_ids))):
                tokens, log_probs, reason = tokens[:end], log_probs[:end], StopReason.STOP
                await outputs.aclose()  # aborts what runs on
                break
        drawn, raw = [0.0] * len(tokens) if ask.params.temperature == 0 else log_probs, log_probs
        if ask.params.temperature not in (0, 1) or ask.params.top_p < 1 or ask.params.top_k > 0 or ask.params.min_p > 0:
            raw = [math.nan] * len(tokens)  # vLLM gives one of the two kinds
        return Done(ask.id, tokens, drawn, raw, str(reason), version)

    def _reason(self, ask: Ask, part: Any) -> StopReason:
        if part.finish_reason == "length":
            return StopReason.LENGTH
        if part.finish_reason == "abort":
            return StopReason.ABORTED
        if part.finish_reason != "stop":
            raise ValueError(f"vLLM ended a request with {part.finish_reason!r}")
        is_eos = not ask.params.ignore_eos and part.stop_reason in self.settings.eos_token_ids
        return StopReason.EOS if is_eos else StopReason.STOP

    async def abort(self, ids: list[int]) -> None:
        """Again and again: a request that vLLM has not taken up yet cannot be aborted there."""
        while left := [str(one) for one in ids if one in self.running]:
            await self.engine.abort(left)
            await asyncio.sleep(0.01)

    async def pause(self) -> None:
        self.is_paused = True
        await self.engine.pause_generation(mode="keep", clear_cache=False)

    async def resume(self) -> None:
        self.is_paused = False
        await self.engine.resume_generation()

    # ---- weights

    async def load(self, files: list[WeightFile], version: int) -> list[Received]:
        """Requests under way keep their tokens; their KV is made anew with the new weights."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self.engine.pause_generation(mode="keep", clear_cache=True)
        await self.engine.start_weight_update()
        for file in files:
            info = {"path": file.path, "num_bytes": file.num_bytes, "entries": file.entries, "version": version}
            await self.engine.update_weights(WeightTransferUpdateRequest(update_info=info))
        if hasattr(self.engine, "get_weight_version"):  # vLLM 0.26 knows no versions
            await self.engine.finish_weight_update(weight_version=str(version))
        else:
            await self.engine.finish_weight_update()
        await self.engine.reset_prefix_cache()
        self.version = version
        received: list[Received] = await self.engine.collective_rpc("podium_received")
        if not self.is_paused:
            await self.engine.resume_generation()
        return received

    async def probe(self, tokens: list[int]) -> list[float]:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        sampling = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            prompt_logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        found: list[Any] = []
        if self.is_paused:
            await self.engine.resume_generation()  # a paused engine computes nothing at all
        try:
            async for output in self.engine.generate({"prompt_token_ids": tokens}, sampling, f"probe-{id(found)}"):
                found = output.prompt_logprobs
        finally:
            if self.is_paused:
                await self.engine.pause_generation(mode="keep", clear_cache=False)
        return [float(at[token].logprob) for at, token in zip(found[1:], tokens[1:], strict=True)]

    # ---- life

    async def sleep(self) -> None:
        await self.engine.sleep(level=1)

    async def wake(self) -> None:
        await self.engine.wake_up()

    async def check_alive(self) -> None:
        await self.engine.is_paused()

    async def close(self) -> None:
        if hasattr(self, "engine"):
            self.engine.shutdown()


def oldest_version(part: Any, at_start: int) -> int:
    """The oldest weights that wrote a token: vLLM's own record, or those that were there when the request came."""
    spans = getattr(part, "weight_versions", None)
    known = [int(span.version) for span in spans or () if span.version.lstrip("-").isdigit()]
    return min(known, default=at_start)
