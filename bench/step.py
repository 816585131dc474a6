"""One whole GRPO step (generate, reward, update, publish), side by side with TRL's GRPOTrainer on the same job.

    python bench/step.py                                            ours alone, phase by phase
    python bench/step.py --trl-python /path/with/trl/bin/python     taking turns with TRL

Both train the same random weights on the same prompts with the same reward, one optimizer step per batch of samples,
no KL term. Each contestant is a process of its own that makes a step when it is told to; they take turns (ours, TRL,
ours, ...) and a line shows the median seconds, the median ratio of neighbouring steps with its smallest and largest, by
the clock and in CPU seconds of the process (which other work on the machine disturbs less), and the tokens of a step.
TRL's micro-batch is an option (`--trl-micro-batch`): try several and keep its best. Responses end where the model draws
the end-of-sequence token; a small vocabulary makes their lengths ragged.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
ROOT = Path(__file__).resolve().parent.parent

SHAPES: dict[str, dict[str, Any]] = {
    "4M": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    | {"intermediate_size": 768, "vocab_size": 128},
    "40M": {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 2}
    | {"intermediate_size": 1536, "vocab_size": 128},
    "0.5B": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2}
    | {"intermediate_size": 4864, "vocab_size": 151936},
}
JOBS = {  # prompts, samples of each, tokens of the longest prompt and of the longest response
    "4M": (8, 8, 96, 192),
    "40M": (8, 8, 96, 192),
    "0.5B": (32, 8, 203, 512),
}
FIRST_WORD = 4
"""Tokens before it are padding, beginning, end and unknown."""


def make_job(folder: Path, job: str) -> None:
    """A model folder with a tokenizer of whole words, and the prompts."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    prompts, _, longest, _ = JOBS[job]
    size = SHAPES[job]["vocab_size"]
    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(FIRST_WORD, size))]
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.save_pretrained(folder / "model")
    torch.manual_seed(0)
    options = {"tie_word_embeddings": True, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = LlamaForCausalLM(LlamaConfig(**SHAPES[job], **options, max_position_embeddings=2048))
    model.cpu().save_pretrained(folder / "model")
    chance = random.Random(0)
    with (folder / "prompts.jsonl").open("w") as file:
        for _ in range(64 * prompts):
            length = longest if job == "0.5B" else chance.randint(longest // 4, longest)
            text = " ".join(f"w{chance.randrange(FIRST_WORD, size)}" for _ in range(length))
            row = {"prompt": text, "data_source": "bench", "reward_model": {"style": "rule", "ground_truth": ""}}
            file.write(json.dumps(row) + "\n")


def even_words(text: str) -> float:
    """The reward: the share of words with an even number."""
    numbers = [int(word[1:]) for word in text.split() if word[1:].isdigit()]
    return sum(n % 2 == 0 for n in numbers) / max(len(numbers), 1)


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    return even_words(solution_str)


def say(message: dict[str, Any]) -> None:
    print("STEP " + json.dumps(message), flush=True)


class Stopwatch:
    """Seconds by the clock, and of this process on all cores."""

    def __init__(self) -> None:
        self.clock, self.cpu = time.perf_counter(), time.process_time()

    def seconds(self) -> dict[str, float]:
        return {"seconds": time.perf_counter() - self.clock, "cpu_seconds": time.process_time() - self.cpu}


def told_to_go() -> bool:
    return sys.stdin.readline().strip() == "go"


# ---- contestants: a process that makes a step for each line on its input


def run_ours(folder: Path, job: str, device: str) -> None:
    sys.path.insert(0, str(ROOT))
    from podium.config import load_config
    from podium.trainer import main_ppo

    prompts, samples, longest, response = JOBS[job]
    words = {
        "data.train_files": f"[{folder / 'prompts.jsonl'}]",
        "data.train_batch_size": prompts,
        "data.max_prompt_length": longest + 8,
        "data.max_response_length": response,
        "actor_rollout_ref.model.path": folder / "model",
        "actor_rollout_ref.rollout.n": samples,
        "actor_rollout_ref.rollout.max_num_seqs": prompts * samples,
        "actor_rollout_ref.rollout.max_num_batched_tokens": 16384,
        "actor_rollout_ref.actor.optim.lr": 1e-5,
        "reward.custom_reward_function": f"{Path(__file__).resolve()}:compute_score",
        "trainer.device": device,
        "trainer.runtime": "local",
        "trainer.default_local_dir": folder / "run",
        "trainer.resume_mode": "disable",
        "trainer.total_training_steps": 10_000,
        "trainer.val_before_train": "false",
        "trainer.save_freq": 0,
        "trainer.logger": "[]",
        "trainer.log_token_samples": 0,
    }
    trainer = main_ppo.build_trainer(load_config(None, [f"{key}={value}" for key, value in words.items()]))
    record = trainer.recorder.step
    watch = [Stopwatch()]

    def step(number: int, metrics: dict[str, float]) -> None:
        record(number, metrics)
        phases = {k.removeprefix("timing_s/"): round(v, 3) for k, v in metrics.items() if k.startswith("timing_s/")}
        numbers = {k: v for k, v in metrics.items() if k in ("perf/total_num_tokens", "perf/max_memory_allocated_gb")}
        numbers |= {k: v for k, v in metrics.items() if "mfu" in k or k == "response_length/mean"}
        say({**watch[0].seconds(), "phases": phases, **numbers})
        if not told_to_go():
            os._exit(0)
        watch[0] = Stopwatch()

    trainer.recorder.step = step  # type: ignore[method-assign]
    trainer.init_workers()
    trainer.fit()


def run_trl(folder: Path, job: str, device: str, micro_batch: int) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    prompts, samples, _longest, response = JOBS[job]
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    watch = [Stopwatch()]

    class Turns(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            if device == "cuda":
                torch.cuda.synchronize()
            memory = torch.cuda.max_memory_allocated() / (1 << 30) if device == "cuda" else 0.0
            say({**watch[0].seconds(), "perf/max_memory_allocated_gb": memory})
            if not told_to_go():
                os._exit(0)
            watch[0] = Stopwatch()

    args = GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=prompts * samples // micro_batch,
        num_generations=samples,
        max_completion_length=response,
        learning_rate=1e-5,
        beta=0.0,
        bf16=device == "cuda",
        use_cpu=device == "cpu",
        gradient_checkpointing=False,
        max_steps=10_000,
        logging_steps=100_000,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model"),
        args=args,
        reward_funcs=lambda completions, **_: [even_words(text) for text in completions],
        train_dataset=Dataset.from_list([{"prompt": row["prompt"]} for row in rows]),
        processing_class=AutoTokenizer.from_pretrained(folder / "model", padding_side="left"),
        callbacks=[Turns()],
    )
    trainer.train()


# ---- the match


class Contestant:
    def __init__(self, name: str, python: str, folder: Path, options: argparse.Namespace) -> None:
        words = [python, __file__, "--worker", name, "--folder", str(folder), "--job", options.job]
        words += ["--device", options.device, "--trl-micro-batch", str(options.trl_micro_batch)]
        self.name, self.log = name, (folder / f"{name}.log").open("w")
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("STEP "):
                answer: dict[str, Any] = json.loads(line.removeprefix("STEP "))
                return answer
        sys.exit(f"{self.name} ended:\n{Path(self.log.name).read_text()[-3000:]}")

    def step(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.read()


def match(folder: Path, options: argparse.Namespace) -> None:
    make_job(folder, options.job)
    ours = Contestant("ours", sys.executable, folder, options)
    peer = Contestant("trl", options.trl_python, folder, options) if options.trl_python else None
    contestants = [c for c in (ours, peer) if c is not None]
    turns: dict[str, list[dict[str, Any]]] = {}
    try:
        for contestant in contestants:  # the first step of each compiles and warms up
            contestant.read()
            contestant.step()
        for _ in range(options.pairs):
            for contestant in contestants:
                turns.setdefault(contestant.name, []).append(contestant.step())
    finally:
        for contestant in contestants:
            contestant.process.kill()
    row: dict[str, Any] = {"job": options.job, "device": options.device, "pairs": options.pairs}
    for kind, ending in (("seconds", ""), ("cpu_seconds", "_cpu")):
        seconds = {name: [turn[kind] for turn in made] for name, made in turns.items()}
        row |= {f"{name}{ending}_s": round(statistics.median(made), 3) for name, made in seconds.items()}
        if peer is not None:
            ratios = [b / a for a, b in zip(seconds["ours"], seconds["trl"], strict=True)]
            row[f"ratio{ending}"] = [round(f(ratios), 2) for f in (statistics.median, min, max)]
    if peer is not None:
        row["trl_memory_gb"] = turns["trl"][-1]["perf/max_memory_allocated_gb"]
    print(json.dumps(row), flush=True)
    print(json.dumps(turns["ours"][-1]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", choices=list(JOBS), default="")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--trl-python", default="", help="a Python that has trl; without it ours runs alone")
    parser.add_argument("--trl-micro-batch", type=int, default=32)
    parser.add_argument("--worker", choices=["ours", "trl"], default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.device:
        import torch

        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    options.job = options.job or ("0.5B" if options.device == "cuda" else "4M")
    if options.worker:
        run: Callable[..., None] = run_ours if options.worker == "ours" else run_trl
        extra = [options.trl_micro_batch] if options.worker == "trl" else []
        run(Path(options.folder), options.job, options.device, *extra)
        return
    with tempfile.TemporaryDirectory() as folder:
        match(Path(folder), options)


if __name__ == "__main__":
    main()
