"""The vLLM side of bench/rollout.py, run by the Python that has vLLM.

Reads a job as a line of JSON, makes an engine with dummy weights, says "done", and then does the job once for each
further line, saying "done" and the seconds of processor time each time.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever vLLM prints is no answer
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))

    job: dict[str, Any] = json.loads(sys.stdin.readline())
    import torch
    from transformers import AutoConfig
    from vllm import LLM, SamplingParams

    folder = tempfile.mkdtemp()
    architecture = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[job["shape"]["model_type"]]
    AutoConfig.for_model(**job["shape"], architectures=[architecture]).save_pretrained(folder)
    on_gpu = torch.cuda.is_available()
    llm = LLM(
        folder,
        load_format="dummy",
        dtype="bfloat16" if on_gpu else "float32",
        enforce_eager=not on_gpu,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_num_seqs=256,
        max_num_batched_tokens=16384,
        max_model_len=4096,
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
    sampling = [
        SamplingParams(max_tokens=new, min_tokens=new, ignore_eos=True, detokenize=False, logprobs=0, n=job["n"])
        for _, new in job["lengths"]
    ]
    spent = 0.0
    while True:
        answers.write(f"done {spent}\n")
        answers.flush()
        if not sys.stdin.readline():
            return
        start = time.process_time()
        llm.generate(prompts, sampling, use_tqdm=False)
        spent = time.process_time() - start


if __name__ == "__main__":
    main()
