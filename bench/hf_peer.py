"""transformers' side of bench/rollout.py: `generate` with a dynamic or a static cache, or continuous batching.

Started by the bench as `hf_peer.py dynamic`, `static` or `continuous`. It computes no log-probs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from peer import serve
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel


def make_model(config: dict[str, Any], device: str) -> PreTrainedModel:
    """Random weights, the same ones in every process."""
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=dtype)
    model.eval()
    return model


def generate(model: PreTrainedModel, job: dict[str, Any], cache: str) -> Callable[[], int]:
    """Left-padded batches; a batch runs until its longest response is written, as it does with end-of-sequence."""
    prompts = [prompt for prompt in job["prompts"] for _ in range(job["n"])]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    longest = max(new for _, new in job["lengths"])
    settings: dict[str, Any] = {"max_new_tokens": longest, "min_new_tokens": longest, "do_sample": True}
    settings |= {"cache_implementation": None if cache == "dynamic" else cache, "pad_token_id": 0}
    write: Any = model.generate

    def run() -> int:
        with torch.no_grad():
            return int(write(ids, attention_mask=mask, **settings)[:, width:].cpu().numel())

    return run


def continuous(model: PreTrainedModel, job: dict[str, Any]) -> Callable[[], int]:
    """Its own continuous batching; every response has the job's mean length."""
    from transformers import ContinuousBatchingConfig  # newer than what the other kinds need

    prompts = [prompt for prompt in job["prompts"] for _ in range(job["n"])]
    mean = -(-job["new_tokens"] // len(prompts))
    settings = GenerationConfig(max_new_tokens=mean, do_sample=True, eos_token_id=-1, pad_token_id=0)
    share = 0.05  # of the machine's memory, whatever others have of it; well under the limit
    if job["device"] == "cuda":
        share = 0.8 * job["memory_bytes"] / torch.cuda.mem_get_info()[1]
    memory = ContinuousBatchingConfig(max_memory_percent=share)

    def run() -> int:
        model.set_attn_implementation("sdpa")
        write: Any = model.generate_batch
        results = write(inputs=prompts, generation_config=settings, continuous_batching_config=memory)
        return sum(len(result.generated_tokens) for result in results.values())

    return run


def make(job: dict[str, Any]) -> Callable[[], int]:
    if job["device"] == "cuda":
        torch.cuda.set_per_process_memory_fraction(min(1.0, job["memory_bytes"] / torch.cuda.mem_get_info()[1]))
    model, kind = make_model(job["config"], job["device"]), sys.argv[1]
    return continuous(model, job) if kind == "continuous" else generate(model, job, kind)


if __name__ == "__main__":
    serve(make)
