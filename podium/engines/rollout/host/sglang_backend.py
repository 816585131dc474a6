"""SGLang behind the `Backend` protocol, by `sglang.Engine` and the asynchronous manager inside it.

SGLang reports many failures as a value: each is looked at, and a failure becomes an error. Its log-probs know the
temperature but not top-p, top-k and min-p; seeds count only where it can compute deterministically
(`engine_kwargs.enable_deterministic_inference`, not on a CPU).
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

from podium.engines.rollout.base import SamplingParams, StopReason
from podium.engines.rollout.host.arguments import merged
from podium.engines.rollout.host.records import Ask, Done, HostSettings, Received, WeightFile
from podium.engines.rollout.host.stops import StopWatch, stop_tokens

OURS = {
    "model_path": "actor_rollout_ref.model.path",
    "dtype": "actor_rollout_ref.model.dtype",
    "trust_remote_code": "actor_rollout_ref.model.trust_remote_code",
    "tp_size": "rollout.tensor_model_parallel_size",
    "max_running_requests": "rollout.max_num_seqs",
    "chunked_prefill_size": "rollout.max_num_batched_tokens",
    "mem_fraction_static": "rollout.gpu_memory_utilization",
    "skip_tokenizer_init": "",
    "custom_weight_loader": "",
}
"""Arguments of SGLang that Podium sets, and the setting to use instead; empty: it has to be as it is."""

CPU_DEFAULTS = {
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_overlap_schedule": True,
}


class SGLangBackend:
    def __init__(self, settings: HostSettings) -> None:
        self.settings = settings
        self.version = 0
        self.is_paused = False
        self.running: set[int] = set()

    async def start(self) -> dict[str, Any]:
        settings, on_cpu = self.settings, self.settings.device == "cpu"
        if on_cpu:
            os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
            os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        import sglang
        from sglang.srt.server_args import ServerArgs

        from podium.engines.rollout.host.sglang_transfer import LOADER

        ours: dict[str, Any] = {
            "model_path": settings.model,
            "dtype": settings.dtype,
            "trust_remote_code": settings.trust_remote_code,
            "tp_size": settings.tensor_parallel_size,
            "max_running_requests": settings.max_num_seqs,
            "chunked_prefill_size": settings.max_num_batched_tokens,
            "mem_fraction_static": 0.1 if on_cpu else settings.gpu_memory_utilization,
            "skip_tokenizer_init": True,
            "custom_weight_loader": [LOADER],
        }
        defaults: dict[str, Any] = {
            "device": settings.device,
            "skip_server_warmup": True,
            "grammar_backend": "none",
            "log_level": "error",
            "random_seed": 0,
        }
        if on_cpu:
            defaults |= CPU_DEFAULTS | {"max_total_tokens": max(8192, settings.max_num_batched_tokens)}
        elif settings.sleeps:
            defaults["enable_memory_saver"] = True
        names = getattr(ServerArgs, "__struct_fields__", None) or [f.name for f in dataclasses.fields(ServerArgs)]
        self.engine = sglang.Engine(**merged("SGLang", names, ours, defaults, settings.engine_kwargs, OURS))
        self.manager = self.engine.tokenizer_manager
        self.stops = StopWatch(settings)
        self.manager.auto_create_handle_loop()
        return {"version": sglang.__version__, "max_model_len": int(self.manager.context_len)}

    # ---- requests

    async def generate(self, ask: Ask) -> Done:
        params = ask.params
        watched = bool(params.stop) or (params.ignore_eos and bool(params.stop_token_ids))
        self.running.add(ask.id)
        version = self.version
        try:
            answer = await self.engine.async_generate(
                input_ids=ask.prompt,
                sampling_params=self._sampling(ask),
                return_logprob=True,
                rid=str(ask.id),
                stream=watched,
            )
            if not watched:
                return self._done(ask, answer, version)
            async for part in answer:
                end = self._watch(params, part["output_ids"])
                if end or part["meta_info"]["finish_reason"] is not None:
                    self.manager.abort_request(rid=str(ask.id))
                    return self._done(ask, part, version, end)
            raise ValueError("SGLang ended a stream without a reason")
        finally:
            self.running.discard(ask.id)

    def _sampling(self, ask: Ask) -> dict[str, Any]:
        params = ask.params
        return {
            "max_new_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": params.min_p,
            "stop_token_ids": stop_tokens(self.settings, params),
            "ignore_eos": params.ignore_eos,
            "sampling_seed": ask.seed % (1 << 31),
        }

    def _watch(self, params: SamplingParams, tokens: list[int]) -> int:
        """Where a stop string or token that SGLang does not look for ends the response; 0: nowhere yet."""
        ends = [self.stops.end(params, tokens, 0)] if params.stop else []
        if params.ignore_eos:
            ends += [place + 1 for place, token in enumerate(tokens) if token in params.stop_token_ids][:1]
        return min((end for end in ends if end), default=0)

    def _done(self, ask: Ask, answer: Any, version: int, end: int = 0) -> Done:
        meta, params = answer["meta_info"], ask.params
        tokens = list(answer["output_ids"])
        log_probs = [float(entry[0]) for entry in meta.get("output_token_logprobs") or ()][: len(tokens)]
        if len(log_probs) != len(tokens):
            raise ValueError(f"SGLang gave {len(log_probs)} log-probs for {len(tokens)} tokens")
        reason = StopReason.STOP if end else self._reason(params, meta["finish_reason"])
        tokens, log_probs = tokens[: end or None], log_probs[: end or None]
        unknown = [math.nan] * len(tokens)
        raw = log_probs if params.temperature in (0, 1) else unknown
        drawn = [0.0] * len(tokens) if params.temperature == 0 else log_probs
        return Done(ask.id, tokens, drawn, raw, str(reason), version)

    def _reason(self, params: SamplingParams, finish: dict[str, Any]) -> StopReason:
        if finish["type"] == "length":
            return StopReason.LENGTH
        if finish["type"] == "abort":
            if finish.get("status_code"):
                raise ValueError(f"SGLang refused a request: {finish.get('message')}")
            return StopReason.ABORTED
        is_eos = not params.ignore_eos and finish.get("matched") in self.settings.eos_token_ids
        return StopReason.EOS if is_eos else StopReason.STOP

    async def abort(self, ids: list[int]) -> None:
        """Again and again: a request that SGLang has not taken up yet cannot be aborted there."""
        while left := [str(one) for one in ids if one in self.running]:
            for rid in left:
                self.manager.abort_request(rid=rid)
            await asyncio.sleep(0.02)

    async def pause(self) -> None:
        self.is_paused = True
        await self._hold()

    async def resume(self) -> None:
        self.is_paused = False
        await self._go_on()

    async def _hold(self) -> None:
        from sglang.srt.managers.io_struct import PauseGenerationReqInput

        await self.manager.pause_generation(PauseGenerationReqInput(mode="retract"))

    async def _go_on(self) -> None:
        from sglang.srt.managers.io_struct import ContinueGenerationReqInput

        await self.manager.continue_generation(ContinueGenerationReqInput())

    # ---- weights

    async def load(self, files: list[WeightFile], version: int) -> list[Received]:
        from sglang.srt.managers import io_struct

        notes = Path(self.settings.folder) / "received"
        shutil.rmtree(notes, ignore_errors=True)
        notes.mkdir()
        await self._hold()
        if hasattr(self.manager, "begin_weight_update"):  # from 0.5.21 on
            _checked(
                "begin_weight_update", await self.manager.begin_weight_update(io_struct.BeginWeightUpdateReqInput())
            )
        for file in files:
            await self._load_file(file, version, str(notes))
        if hasattr(self.manager, "end_weight_update"):
            ended = await self.manager.end_weight_update(io_struct.EndWeightUpdateReqInput())
            _checked("end_weight_update", ended)
        flushed = await self.manager.flush_cache()
        _checked("flush_cache", (flushed.success, getattr(flushed, "message", "")))
        self.version = version
        if not self.is_paused:
            await self._go_on()
        return [json.loads(note.read_text()) for note in sorted(notes.iterdir())] or [{}]

    async def _load_file(self, file: WeightFile, version: int, notes: str) -> None:
        import torch
        from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput
        from sglang.srt.utils import MultiprocessingSerializer

        from podium.engines.rollout.host.sglang_transfer import LOADER, describe

        named = [(describe(file, version, notes), torch.zeros(1))]
        request = UpdateWeightsFromTensorReqInput(
            serialized_named_tensors=[
                MultiprocessingSerializer.serialize(named) for _ in range(self.settings.tensor_parallel_size)
            ],
            load_format=LOADER,
            flush_cache=False,
            weight_version=str(version),
        )
        _checked("update_weights_from_tensor", await self.manager.update_weights_from_tensor(request))

    async def probe(self, tokens: list[int]) -> list[float]:
        if self.is_paused:
            await self._go_on()  # a paused engine computes nothing at all
        try:
            answer = await self.engine.async_generate(
                input_ids=tokens,
                sampling_params={"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
                return_logprob=True,
                logprob_start_len=0,
            )
        finally:
            if self.is_paused:
                await self._hold()
        return [float(entry[0]) for entry in answer["meta_info"]["input_token_logprobs"][1:]]

    # ---- life

    async def sleep(self) -> None:
        from sglang.srt.managers.io_struct import ReleaseMemoryOccupationReqInput

        await self.manager.release_memory_occupation(ReleaseMemoryOccupationReqInput())

    async def wake(self) -> None:
        from sglang.srt.managers.io_struct import ResumeMemoryOccupationReqInput

        await self.manager.resume_memory_occupation(ResumeMemoryOccupationReqInput())

    async def check_alive(self) -> None:
        await self.manager.get_internal_state()

    async def close(self) -> None:
        """Nothing to say goodbye for: the whole process group ends after this."""


def _checked(what: str, result: Any) -> None:
    """A status that SGLang returns instead of raising."""
    is_good, message = result[0], result[1]
    if not is_good:
        raise ValueError(f"{what} failed: {message}")
