"""How fast the train engine is, and what memory it takes.

    python bench/train_engine.py                  on a CPU: against TRL's update of the same tokens (pip install trl)
    python bench/train_engine.py                  on a GPU: MFU and peak memory of 0.5B and 1.5B shapes, ragged lengths
    python bench/train_engine.py --jobs 4M --pairs 5          python bench/train_engine.py --forms compiled --profile

An update is forward, backward, clipping and the AdamW step, over the same rows with the same loss (a clipped policy
gradient, mean over tokens). On a CPU both sides first take one step from equal weights and must agree in loss and
gradient norm; then they take turns (ours, TRL, ours, TRL, ...), TRL with the micro-batch that suits it best. MFU
counts true tokens: no padding, the head for scored tokens only.
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import random
import statistics
import sys
import tempfile
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
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from podium.config.schema import FSDPConfig, OptimConfig
from podium.engines.train.base import ModelOutputs
from podium.engines.train.flops import peak_flops
from podium.engines.train.torch import TorchEngine
from podium.metric import Metric, Metrics
from podium.models.load import prepare
from podium.protocol import DataProto, compute_position_ids

SHAPES: dict[str, dict[str, Any]] = {
    "4M": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    | {"intermediate_size": 768, "vocab_size": 4096},
    "40M": {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2}
    | {"intermediate_size": 1536, "vocab_size": 32000},
    "0.5B": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2}
    | {"intermediate_size": 4864, "vocab_size": 151936},
    "1.5B": {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2}
    | {"intermediate_size": 8960, "vocab_size": 151936},
}
FORMS: dict[str, tuple[FSDPConfig, bool]] = {
    "plain": (FSDPConfig(), False),
    "compiled": (FSDPConfig(use_torch_compile=True), False),
    "checkpointed": (FSDPConfig(), True),
    "compiled+checkpointed": (FSDPConfig(use_torch_compile=True), True),
}
OPTIM = OptimConfig(lr=1e-5, weight_decay=0.01)
CLIP = 0.2


@dataclass(frozen=True)
class Job:
    prompts: list[int]
    """Tokens of each prompt."""
    responses: list[list[int]]
    """Tokens of each of its samples."""

    @property
    def lengths(self) -> list[int]:
        return [p + r for p, group in zip(self.prompts, self.responses, strict=True) for r in group]


def make_job(device: str) -> Job:
    """CPU: 8 prompts of 8–64 tokens, 8 samples each. GPU: 96 prompts of 64–512, one sample each: nothing to share."""
    rng = random.Random(0)
    count, samples, low, high, longest, centre = (
        (8, 8, 8, 64, 192, 3.6) if device == "cpu" else (96, 1, 64, 512, 2048, 6.0)
    )

    def response() -> int:
        return max(4, min(longest, int(rng.lognormvariate(centre, 0.7))))

    prompts = [rng.randint(low, high) for _ in range(count)]
    return Job(prompts, [[response() for _ in range(samples)] for _ in prompts])


def make_rows(job: Job, vocab_size: int) -> DataProto:
    rng = random.Random(1)
    width = max(job.prompts), max(max(group) for group in job.responses)
    ids, masks, advantages = [], [], []
    for size, group in zip(job.prompts, job.responses, strict=True):
        prompt = [rng.randrange(10, vocab_size) for _ in range(size)]
        for new in group:
            response = [rng.randrange(10, vocab_size) for _ in range(new)]
            left, right = width[0] - size, width[1] - new
            ids.append([0] * left + prompt + response + [0] * right)
            masks.append([0] * left + [1] * (size + new) + [0] * right)
            advantages.append(rng.gauss(0.0, 1.0))
    input_ids, mask = torch.tensor(ids), torch.tensor(masks)
    return DataProto.from_dict(
        tensors={
            "prompts": input_ids[:, : width[0]],
            "responses": input_ids[:, width[0] :],
            "input_ids": input_ids,
            "attention_mask": mask,
            "position_ids": compute_position_ids(mask),
            "response_mask": mask[:, width[0] :],
            "advantages": torch.tensor(advantages),
        }
    )


def make_model(shape: str, device: str) -> PreTrainedModel:
    options = {"model_type": "qwen2", "max_position_embeddings": 4096, "tie_word_embeddings": True}
    config = AutoConfig.for_model(**(SHAPES[shape] | options | {"eos_token_id": 1, "bos_token_id": None}))
    torch.manual_seed(0)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval()


def policy_loss(outputs: ModelOutputs, rows: Any) -> tuple[Tensor, Metrics]:
    """Strictly on-policy: the old log-probs are these."""
    assert outputs.log_probs is not None
    ratio = (outputs.log_probs - outputs.log_probs.detach()).exp()
    gain = rows["advantages"][:, None]
    losses = -torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain) * rows["response_mask"]
    return losses.sum(), {"loss": Metric.mean(losses.detach().sum().item(), float(rows["response_mask"].sum()))}


Update = Callable[[], tuple[float, float]]
"""One optimizer step; loss and gradient norm."""


def ours(module: PreTrainedModel, rows: DataProto, device: str, form: str = "plain") -> tuple[TorchEngine, Update]:
    fsdp, checkpointing = FORMS[form]
    prepare(module, gradient_checkpointing=checkpointing)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    engine = TorchEngine(module, optim=OPTIM, fsdp=fsdp, dtype=dtype, device=device)
    count = float(rows.tensors()["response_mask"].sum())

    def update() -> tuple[float, float]:
        metrics = engine.update(rows, policy_loss, count)
        return metrics["loss"].result(), metrics["grad_norm"].result()

    return engine, update


def trl(module: PreTrainedModel, rows: DataProto, micro_batch: int) -> Update:
    """What GRPOTrainer does with a finished batch: its loss on slices of the padded batch, then clip and step."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from podium.models.load import load_tokenizer

    columns = rows.tensors()
    total, width = len(rows), columns["prompts"].shape[1]
    parts = -(-total // micro_batch)
    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=parts,
        num_generations=8,
        learning_rate=OPTIM.lr,
        weight_decay=OPTIM.weight_decay,
        beta=0.0,
        loss_type="dapo",
        epsilon=CLIP,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to=[],
    )
    trainer = GRPOTrainer(
        model=module,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * total}),
        processing_class=load_tokenizer("builtin:tiny"),
    )
    trainer.current_gradient_accumulation_steps = parts
    optimizer = torch.optim.AdamW(module.parameters(), lr=OPTIM.lr, weight_decay=OPTIM.weight_decay, fused=True)
    inputs = {
        "prompt_ids": columns["prompts"],
        "prompt_mask": columns["attention_mask"][:, :width],
        "completion_ids": columns["responses"],
        "completion_mask": columns["response_mask"],
        "advantages": columns["advantages"],
    }
    items = columns["response_mask"].sum()

    def update() -> tuple[float, float]:
        module.train()
        loss = 0.0
        for start in range(0, total, micro_batch):
            part: dict[str, Any] = {name: tensor[start : start + micro_batch] for name, tensor in inputs.items()}
            one = trainer._compute_loss(module, part | {"num_items_in_batch": items})
            one.backward()
            loss += one.item()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss, float(norm)

    return update


# ---- the clock


def measured_peak(device: str) -> float:
    side = 8192
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    (a @ b).sum().item()
    return 2 * side**3 / min(timed(lambda: a @ b, device) for _ in range(10))


def against_trl(shape: str, pairs: int) -> None:
    job = make_job("cpu")
    model = make_model(shape, "cpu")
    rows = make_rows(job, model.config.vocab_size)
    _, mine = ours(copy.deepcopy(model), rows, "cpu")
    (loss, norm), costs = mine(), {}
    sizes = (8, 16, 32, 64) if shape == "4M" else (4, 8, 16)  # TRL keeps the logits of a micro-batch several times
    for size in sizes:
        update = trl(copy.deepcopy(model), rows, size)
        their_loss, their_norm = update()
        assert abs(loss - their_loss) < 1e-5 and abs(norm - their_norm) < 1e-3 * norm, (size, loss, their_loss)
        costs[timed(update, "cpu")] = (size, update, their_loss, their_norm)
        gc.collect()
    best, peer, their_loss, their_norm = costs[min(costs)]
    times = [(timed(mine, "cpu"), timed(peer, "cpu")) for _ in range(pairs)]
    ratios = [theirs / own for own, theirs in times]
    tokens = sum(job.lengths)
    padded = rows.tensors()["input_ids"].numel()
    print(
        f"{shape}: {tokens} tokens ({padded} padded), loss {loss:.6f} and {their_loss:.6f}, "
        f"gradient norm {norm:.5f} and {their_norm:.5f}; TRL with micro-batches of {best}: "
        f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f}) over {pairs} pairs"
    )


def on_a_gpu(shape: str, form: str, repeats: int, profile: bool, peak: float) -> None:
    job = make_job("cuda")
    engine, update = ours(make_model(shape, "cuda"), make_rows(job, SHAPES[shape]["vocab_size"]), "cuda", form)
    start = time.perf_counter()
    first = update()
    warm = time.perf_counter() - start
    update()
    torch.cuda.reset_peak_memory_stats()
    seconds = statistics.median(timed(update, "cuda") for _ in range(repeats))
    tokens, scored = sum(job.lengths), sum(sum(group) for group in job.responses)
    flops = engine.flops.update(job.lengths, scored)
    whole = engine.flops.update(job.lengths)
    nominal = peak_flops("cuda") or peak
    memory = torch.cuda.max_memory_allocated() / 2**30
    print(
        f"{shape} {form}: {tokens} tokens ({scored} scored) in {seconds * 1000:.0f} ms, {tokens / seconds / 1000:.1f}k "
        f"tok/s, MFU {flops / seconds / peak:.1%} of {peak / 1e12:.0f} TFLOP/s measured "
        f"({flops / seconds / nominal:.1%} of {nominal / 1e12:.0f} nominal; {whole / seconds / peak:.1%} of the former "
        f"were every token scored), "
        f"{memory:.1f} GiB peak; first step {warm:.0f} s, loss {first[0]:.5f}, gradient norm {first[1]:.4f}",
        flush=True,
    )
    if profile:
        show_kernels(update)


def show_kernels(update: Update) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        update()
        torch.cuda.synchronize()
    print(seen.key_averages().table(sort_by="self_device_time_total", row_limit=28, max_name_column_width=70))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--jobs", nargs="+", default=["4M", "40M"] if device == "cpu" else ["0.5B", "1.5B"])
    parser.add_argument("--forms", nargs="+", default=["plain", "compiled", "checkpointed"], choices=list(FORMS))
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs (CPU), or runs (GPU)")
    parser.add_argument("--profile", action="store_true", help="show the kernels of one update (GPU)")
    arguments = parser.parse_args()
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}; torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    if device == "cpu":
        for shape in arguments.jobs:
            against_trl(shape, arguments.pairs)
        return
    peak = measured_peak(device)
    for shape in arguments.jobs:
        for form in arguments.forms:
            on_a_gpu(shape, form, arguments.pairs, arguments.profile, peak)
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
