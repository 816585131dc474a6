"""How fast the native rollout engine is, side by side with the ways to generate that a user has without it.

    python bench/rollout.py                                  every job of this device, against every peer that is here
    python bench/rollout.py --jobs nano --peers none --pairs 3           ours alone, on one job
    python bench/rollout.py --jobs ragged --peers hf-static,vllm --limit-s 240      what fits into four minutes
    VLLM_PYTHON=/path/with/vllm/bin/python python bench/rollout.py --peers vllm     vLLM from an environment of its own

A job is a model shape with random weights and a list of (prompt, new) lengths. Before it is timed, our log-probs are
compared with a plain forward pass of transformers. Each peer is a process of its own (bench/peer.py says how they
talk), so that it cannot break ours; one that fails has `peer_failed` in its row. Contestants take turns (ours, peer,
ours, peer, ...). A row shows the median tokens per second, the median ratio of neighbouring runs with its smallest and
largest (on a CPU also that of the processor time, the better measure on a busy machine), and the share of the limit:
the least time in which the device could read the weights and the KV and do the arithmetic. Ours and vLLM compute
log-probs, the peers of transformers do not.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import signal
import statistics
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
from hf_peer import make_model
from peer import Patience, Turn, limit_memory, take_turns
from transformers import PreTrainedModel

from podium.config.schema import RolloutConfig
from podium.engines.rollout.base import Completion, SamplingParams
from podium.engines.rollout.native.engine import NativeEngine

HERE = Path(__file__).resolve().parent
VLLM_PYTHON = os.environ.get("VLLM_PYTHON", str(HERE.parent / ".venv-vllm/bin/python"))
"""The Python that has vLLM; `make env-vllm` builds one."""

PEERS = {
    "hf-dynamic": [sys.executable, str(HERE / "hf_peer.py"), "dynamic"],
    "hf-static": [sys.executable, str(HERE / "hf_peer.py"), "static"],
    "hf-continuous": [sys.executable, str(HERE / "hf_peer.py"), "continuous"],
    "vllm": [VLLM_PYTHON, str(HERE / "vllm_peer.py")],
}

CPU_BYTES = 6 << 30
"""What a contestant may take on a CPU; one that wants more fails instead of the machine."""
OUR_GPU_SHARE = 0.3
"""Of a GPU's memory, for our KV cache: on an H200 enough for every job at once."""
GPU_RESERVE = 4 << 30
"""Bytes of a GPU that a peer leaves free, for its CUDA context and for what we may yet ask for."""

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
    def config(self) -> dict[str, Any]:
        options = {"max_position_embeddings": 4096, "tie_word_embeddings": True, "eos_token_id": 1}
        return SHAPES[self.shape] | options | {"bos_token_id": None}

    @property
    def new_tokens(self) -> int:
        return self.n * sum(new for _, new in self.lengths)

    def prompts(self) -> list[list[int]]:
        rng, vocab_size = random.Random(1), SHAPES[self.shape]["vocab_size"]
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


def native(model: PreTrainedModel, job: Job) -> Callable[[], list[Completion]]:
    """What does the whole job once."""
    config = RolloutConfig(max_num_seqs=256, max_num_batched_tokens=16384)
    config.kv_cache_gb, config.gpu_memory_utilization = 4.0, OUR_GPU_SHARE
    engine = NativeEngine(model, config)
    prompts = job.prompts()

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


# ---- the limit and the check


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
    seconds: float = sum(2 * body * size / device.flops for size, _ in job.lengths)
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
    prompts = [p for p in job.prompts() for _ in range(job.n)]
    for prompt, completion in list(zip(prompts, completions, strict=True))[:4]:
        ids = torch.tensor([prompt + completion.token_ids], device=model.device)
        rows = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        expected = rows.gather(1, ids[0, len(prompt) :, None]).squeeze(1).cpu()
        worst = max(worst, float((torch.tensor(completion.raw_log_probs) - expected).abs().max()))
    allowed = 1e-4 if model.dtype == torch.float32 else 0.3
    assert worst < allowed, f"log-probs differ from transformers by {worst}"
    return worst


# ---- taking turns


def free_memory(device: str) -> int:
    """Bytes that a peer may take."""
    return CPU_BYTES if device == "cpu" else max(0, torch.cuda.mem_get_info()[0] - GPU_RESERVE)


def spread(ratios: list[float]) -> list[float]:
    return [round(f(ratios), 2) for f in (statistics.median, min, max)]


def result(job: Job, limit_s: float, mine: list[Turn], theirs: list[Turn], device: str) -> dict[str, Any]:
    if not mine:
        return {"skipped": "--limit-s was over"}
    own_s = statistics.median(turn.seconds for turn in mine)
    row: dict[str, Any] = {"tok_s": round(job.new_tokens / own_s), "share_of_limit": round(limit_s / own_s, 3)}
    pairs = list(zip(mine, theirs, strict=False))  # a peer that failed has fewer turns
    row |= {"runs": len(mine), "pairs": len(pairs)}
    if pairs:
        row["peer_tok_s"] = round(job.new_tokens / statistics.median(turn.seconds for turn in theirs))
        row["ratio"] = spread([peer.seconds / own.seconds for own, peer in pairs])
        if device == "cpu":
            row["cpu_ratio"] = spread([peer.cpu_s / own.cpu_s for own, peer in pairs])
    return row


def compete(job: Job, device: str, ceilings: Device, peers: list[str], pairs: int, patience: Patience) -> None:
    """Prints a row for each peer, as soon as it is known."""
    model = make_model(job.config, device)
    ours = native(model, job)
    difference = check(model, ours(), job)
    free_cached(device)
    ours()
    limit_s = limit_seconds(job, model, ceilings)

    def our_turn() -> Turn:
        before = time.process_time()
        seconds = timed(ours, device)
        return Turn(seconds, time.process_time() - before)

    asked = {"config": job.config, "lengths": job.lengths, "n": job.n, "prompts": job.prompts()}
    asked |= {"new_tokens": job.new_tokens, "device": device, "memory_bytes": free_memory(device)}
    for name in peers or [""]:
        row: dict[str, Any] = {"job": job.name, "shape": job.shape, "tokens": job.new_tokens, "peer": name or None}
        row |= {"log_prob_difference": difference, "limit_tok_s": round(job.new_tokens / limit_s)}
        mine, theirs, failure = take_turns(our_turn, PEERS.get(name), asked, pairs, patience)
        if failure:
            row["peer_failed"] = failure
        print(json.dumps(row | result(job, limit_s, mine, theirs, device)), flush=True)


def free_cached(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", default="", help="names to run, by substring, separated by commas")
    here = [name for name, command in PEERS.items() if Path(command[0]).is_file()]
    parser.add_argument("--peers", default=",".join(here), help=f"none, or some of {', '.join(PEERS)}")
    parser.add_argument("--pairs", type=int, default=5, help="turns of each contestant")
    parser.add_argument("--peer-timeout", type=float, default=300.0, help="seconds for one answer of a peer")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="seconds in all; late pairs are left out")
    options = parser.parse_args()
    options.peers = [] if options.peers == "none" else options.peers.split(",")
    if unknown := set(options.peers) - set(PEERS):
        parser.error(f"--peers: there is no {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    return options


def main() -> None:
    options = parse_arguments()
    device, patience = options.device, Patience(options.peer_timeout, options.limit_s)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the peers end with us
    if device == "cpu":
        limit_memory(CPU_BYTES)
    name = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    ceilings = measure_device(device)
    print(f"{name} · torch {torch.__version__} · transformers {transformers.__version__}")
    print(f"{ceilings.bandwidth / 1e9:.0f} GB/s copy · {ceilings.flops / 1e12:.2f} TFLOP/s", flush=True)
    wanted = [part for part in options.jobs.split(",") if part]
    for job in make_jobs(device):
        if wanted and not any(part in job.name for part in wanted):
            continue
        free_cached(device)
        if patience.left_s() > 0:
            compete(job, device, ceilings, options.peers, options.pairs, patience)
        else:
            print(json.dumps({"job": job.name, "skipped": "--limit-s was over"}), flush=True)


if __name__ == "__main__":
    main()
