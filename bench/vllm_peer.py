"""vLLM's side of bench/rollout.py, run by the Python that has vLLM. With log-probs, as ours; dummy weights."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

from peer import serve

ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}
"""Compiling two small functions takes 15 s there and gains nothing."""


def make(job: dict[str, Any]) -> Callable[[], int]:
    on_cpu = job["device"] == "cpu"
    for name, value in (ENVIRONMENT | (CPU_ENVIRONMENT if on_cpu else {})).items():
        os.environ.setdefault(name, value)
    import torch
    from transformers import AutoConfig
    from vllm import LLM, SamplingParams

    options: dict[str, Any] = {"dtype": "float32", "enforce_eager": True}
    if not on_cpu:
        share = job["memory_bytes"] / torch.cuda.mem_get_info()[1]
        options = {"dtype": "bfloat16", "gpu_memory_utilization": share}
    architecture = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[job["config"]["model_type"]]
    with tempfile.TemporaryDirectory() as folder:
        AutoConfig.for_model(**job["config"], architectures=[architecture]).save_pretrained(folder)
        llm = LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            max_num_seqs=256,
            max_num_batched_tokens=16384,
            max_model_len=4096,
            **options,
        )
    prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
    sampling = [
        SamplingParams(max_tokens=new, min_tokens=new, ignore_eos=True, detokenize=False, logprobs=0, n=job["n"])
        for _, new in job["lengths"]
    ]

    def run() -> int:
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        return sum(len(sample.token_ids) for output in outputs for sample in output.outputs)

    return run


if __name__ == "__main__":
    serve(make)
