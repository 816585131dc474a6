"""How fast the native rollout engine is, side by side with the ways to generate that a user has without it.

    python bench/rollout.py                      every job of this machine's device, against every peer that runs here
    python bench/rollout.py --jobs nano --peers none --pairs 3

A job is a model shape with random weights and a list of (prompt, new) lengths. Before it is timed, our log-probs are
compared with a plain forward pass of transformers. Contestants take turns (ours, peer, ours, peer, ...); a line shows
the median tokens per second, the median ratio of neighbouring runs with its smallest and largest (for vLLM on a CPU, in
its own process, also that of the processor time), and the share of the limit: the least time in which the device could
read the weights and the KV and do the arithmetic. Peers of transformers do not compute log-probs; ours does.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import transformers
from clock import timed
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from podium.config.schema import RolloutConfig
from podium.engines.rollout.base import Completion, SamplingParams
from podium.engines.rollout.native.engine import NativeEngine

VLLM_PYTHON = os.environ.get("VLLM_PYTHON", str(Path(__file__).resolve().parent.parent / ".venv-vllm/bin/python"))
"""The Python that has vLLM; `make env-vllm` builds one."""

VLLM_PEERS: list[subprocess.Popen[str]] = []
PEER_CPU_S: list[float] = []
"""Processor time of each run of a peer in another process: on a busy machine a better measure than the clock."""

CPU_BYTES = 6 << 30
"""What a run on a CPU may take; a peer that wants more fails instead of the machine."""

SHAPES: dict[str, dict[str, Any]] = {
    "4M": {"model_type": "qwen2", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "intermediate_size": 768, "vocab_size": 4096},
    "40M": {"model_type": "qwen2", "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8}
    | {"num_key_value_heads": 2, "intermediate_size": 1536, "vocab_size": 32000},
    "Qwen2.5-0.5B": {"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14}
    | {"num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936},
    "Qwen3-0.6B": {"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16}
    | {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936},
}


@dataclass(frozen=True)
class Job:
    name: str
    shape: str
    lengths: list[tuple[int, int]]
    """Tokens of each prompt, and tokens written for each of its samples."""
    n: int = 1

    @property
    def new_tokens(self) -> int:
        return self.n * sum(new for _, new in self.lengths)

    def prompts(self, vocab_size: int) -> list[list[int]]:
        rng = random.Random(1)
        return [[rng.randrange(10, vocab_size) for _ in range(size)] for size, _ in self.lengths]


def make_jobs(device: str) -> list[Job]:
    rng = random.Random(0)
    if device == "cpu":
        ragged = [(rng.randint(8, 128), min(256, int(rng.lognormvariate(4.0, 0.8)) + 4)) for _ in range(32)]
        return [
            Job(f"{kind} {shape}", shape, lengths)
            for shape in ("4M", "40M")
            for kind, lengths in (("uniform", [(64, 64)] * 32), ("ragged", ragged))
        ]
    # as nano-vLLM draws them: a prompt's length, then its tokens; the lengths of the responses last
    sizes = [len([rng.randint(0, 10000) for _ in range(rng.randint(100, 1024))]) for _ in range(256)]
    nano = [(size, rng.randint(100, 1024)) for size in sizes]
    return [
        Job("uniform", "Qwen2.5-0.5B", [(256, 256)] * 256),
        Job("groups", "Qwen2.5-0.5B", [(203, 512)] * 32, n=8),
        Job("nano", "Qwen3-0.6B", nano),
    ]


def make_model(shape: str, device: str) -> PreTrainedModel:
    options = {"max_position_embeddings": 4096, "tie_word_embeddings": True, "eos_token_id": 1, "bos_token_id": None}
    config = AutoConfig.for_model(**(SHAPES[shape] | options))
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval()


# ---- contestants: each makes a function that does the whole job once


def native(model: PreTrainedModel, job: Job) -> Callable[[], list[Completion]]:
    engine = NativeEngine(model, RolloutConfig(max_num_seqs=256, max_num_batched_tokens=16384, kv_cache_gb=4.0))
    prompts = job.prompts(model.config.vocab_size)

    def run() -> list[Completion]:
        groups = [
            engine.submit_group(prompt, SamplingParams(max_tokens=new, ignore_eos=True), n=job.n, seed=i)
            for i, (prompt, (_, new)) in enumerate(zip(prompts, job.lengths, strict=True))
        ]
        requests = [request for group in groups for request in group]
        while not all(request.done for request in requests):
            engine.step()
        return [request.result() for request in requests]

    return run


def hf_generate(cache: str) -> Callable[[PreTrainedModel, Job], Callable[[], None]]:
    """Left-padded batches; a batch runs until its longest response is written, as it does with end-of-sequence."""

    def make(model: PreTrainedModel, job: Job) -> Callable[[], None]:
        prompts = [p for p in job.prompts(model.config.vocab_size) for _ in range(job.n)]
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=model.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
        longest = max(new for _, new in job.lengths)
        generate: Any = model.generate

        def run() -> None:
            model.set_attn_implementation("sdpa")
            with torch.no_grad():
                generate(
                    ids,
                    attention_mask=mask,
                    max_new_tokens=longest,
                    min_new_tokens=longest,
                    do_sample=True,
                    cache_implementation=None if cache == "dynamic" else cache,
                    pad_token_id=0,
                )

        return run

    return make


def hf_continuous(model: PreTrainedModel, job: Job) -> Callable[[], None]:
    """transformers' own continuous batching; every response has the job's mean length. Its cache is kept from taking
    what memory there is."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    prompts = [p for p in job.prompts(model.config.vocab_size) for _ in range(job.n)]
    mean = round(job.new_tokens / len(prompts))
    settings = GenerationConfig(max_new_tokens=mean, do_sample=True, eos_token_id=-1, pad_token_id=0)

    memory = ContinuousBatchingConfig(max_memory_percent=0.05 if model.device.type == "cpu" else 0.5)

    def run() -> None:
        model.set_attn_implementation("sdpa")
        generate_batch: Any = model.generate_batch
        generate_batch(inputs=prompts, generation_config=settings, continuous_batching_config=memory)

    return run


def vllm_generate(_model: PreTrainedModel, job: Job) -> Callable[[], None]:
    """In its own environment and process, which does the whole job each time a line asks it to. With log-probs, as we
    do; dummy weights of the same shape."""
    for former in VLLM_PEERS:
        former.kill()
    program = Path(__file__).with_name("vllm_peer.py")
    environment = os.environ | {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    peer = subprocess.Popen(
        [VLLM_PYTHON, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert peer.stdin is not None and peer.stdout is not None
    told, heard = peer.stdin, peer.stdout
    shape = SHAPES[job.shape] | {"max_position_embeddings": 4096, "tie_word_embeddings": True}
    asked = {"shape": shape, "lengths": job.lengths, "n": job.n, "prompts": job.prompts(shape["vocab_size"])}

    def say(line: str) -> None:
        told.write(line + "\n")
        told.flush()
        while not (answer := heard.readline()).startswith("done"):
            if not answer and peer.poll() is not None:
                raise RuntimeError(f"vLLM ended with code {peer.poll()}")
        PEER_CPU_S.append(float(answer.split()[1]))

    VLLM_PEERS.append(peer)
    atexit.register(peer.kill)
    say(json.dumps(asked))
    return lambda: say("run")


PEERS: dict[str, Callable[[PreTrainedModel, Job], Callable[[], None]]] = {
    "hf-dynamic": hf_generate("dynamic"),
    "hf-static": hf_generate("static"),
    "hf-continuous": hf_continuous,
}
if Path(VLLM_PYTHON).is_file():
    PEERS["vllm"] = vllm_generate


# ---- the limit, the check, the clock


@dataclass(frozen=True)
class Device:
    """Measured ceilings: bytes per second of a large copy (read and written), FLOP per second of a large product."""

    bandwidth: float
    flops: float


def measure_device(device: str) -> Device:
    def best(action: Callable[[], object], repeats: int = 5) -> float:
        action()
        return min(timed(action, device) for _ in range(repeats))

    size, side = (1 << 26, 1024) if device == "cpu" else (1 << 30, 8192)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    source, target = (torch.ones(size // 4, device=device) for _ in range(2))
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return Device(2 * size / best(lambda: target.copy_(source)), 2 * side**3 / best(lambda: a @ b))


def limit_seconds(job: Job, model: PreTrainedModel, device: Device) -> float:
    """Prompts at the arithmetic's limit; each decode step reads weights or computes, and reads the KV it needs."""
    config, itemsize = model.config, model.dtype.itemsize
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * itemsize
    weights = sum(p.numel() for p in model.parameters())
    body = weights - config.vocab_size * config.hidden_size
    seconds = sum(2 * body * size / device.flops for size, _ in job.lengths)
    for step in range(max(new for _, new in job.lengths)):
        alive = [size + step for size, new in job.lengths if new > step]
        rows = len(alive) * job.n
        seconds += max(weights * itemsize / device.bandwidth, 2 * weights * rows / device.flops)
        seconds += job.n * sum(alive) * kv / device.bandwidth
    return seconds


@torch.no_grad()
def check(model: PreTrainedModel, completions: list[Completion], job: Job) -> float:
    """The largest difference of our log-probs from a plain forward pass, over a few responses."""
    model.set_attn_implementation("sdpa")
    worst = 0.0
    prompts = [p for p in job.prompts(model.config.vocab_size) for _ in range(job.n)]
    for prompt, completion in list(zip(prompts, completions, strict=True))[:4]:
        ids = torch.tensor([prompt + completion.token_ids], device=model.device)
        rows = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        expected = rows.gather(1, ids[0, len(prompt) :, None]).squeeze(1).cpu()
        worst = max(worst, float((torch.tensor(completion.raw_log_probs) - expected).abs().max()))
    allowed = 1e-4 if model.dtype == torch.float32 else 0.3
    assert worst < allowed, f"log-probs differ from transformers by {worst}"
    return worst


def compete(job: Job, device: str, ceilings: Device, peers: list[str], pairs: int) -> list[dict[str, Any]]:
    model = make_model(job.shape, device)
    ours = native(model, job)
    difference = check(model, ours(), job)
    ours()
    limit = limit_seconds(job, model, ceilings)
    rows = []
    for peer in peers or [None]:
        row: dict[str, Any] = {"job": job.name, "shape": job.shape, "tokens": job.new_tokens, "peer": peer}
        row |= {"log_prob_difference": difference, "limit_tok_s": round(job.new_tokens / limit)}
        mine, theirs, own_cpu = [], [], []
        try:
            other = PEERS[peer](model, job) if peer else None
            if other is not None:
                timed(other, device)
            PEER_CPU_S.clear()
            for _ in range(pairs):
                before = time.process_time()
                mine.append(timed(ours, device))
                own_cpu.append(time.process_time() - before)
                if other is not None:
                    theirs.append(timed(other, device))
        except Exception as error:  # noqa: BLE001  a peer that cannot run here is a result, not a failure of ours
            row["peer_failed"] = f"{type(error).__name__}: {str(error)[:160]}"
            mine = mine or [timed(ours, device) for _ in range(pairs)]
            theirs = []
        row["tok_s"] = round(job.new_tokens / statistics.median(mine))
        row["share_of_limit"] = round(limit / statistics.median(mine), 3)
        if theirs:
            ratios = [b / a for a, b in zip(mine, theirs, strict=True)]
            row["peer_tok_s"] = round(job.new_tokens / statistics.median(theirs))
            row["ratio"] = [round(f(ratios), 2) for f in (statistics.median, min, max)]
            if len(PEER_CPU_S) == pairs and device == "cpu":
                spent = [b / a for a, b in zip(own_cpu, PEER_CPU_S, strict=True)]
                row["cpu_ratio"] = [round(f(spent), 2) for f in (statistics.median, min, max)]
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", default="", help="names to run, by substring, separated by commas")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"none, or some of {', '.join(PEERS)}")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    device = options.device
    if device == "cpu":
        resource.setrlimit(resource.RLIMIT_DATA, (CPU_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    name = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    ceilings = measure_device(device)
    print(f"{name} · torch {torch.__version__} · transformers {transformers.__version__}")
    print(f"{ceilings.bandwidth / 1e9:.0f} GB/s copy · {ceilings.flops / 1e12:.2f} TFLOP/s", flush=True)
    wanted = [part for part in options.jobs.split(",") if part]
    peers = [] if options.peers == "none" else options.peers.split(",")
    for job in make_jobs(device):
        if not wanted or any(part in job.name for part in wanted):
            compete(job, device, ceilings, peers, options.pairs)
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
