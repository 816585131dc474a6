"""Run folders for tests of the dashboard: small, odd, broken or very long, written as the trainer writes them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FAMILIES = {
    "actor": ("entropy", "grad_norm", "kl_loss", "lr", "pg_clipfrac", "pg_loss", "ppo_kl"),
    "critic": ("score/mean", "score/max", "score/min", "advantages/mean", "rewards/mean", "zero_std_groups"),
    "global_seqlen": ("max", "mean", "min", "minmax_diff"),
    "perf": ("cpu_memory_used_gb", "max_memory_allocated_gb", "throughput", "time_per_step", "total_num_tokens"),
    "prompt_length": ("max", "mean", "min"),
    "publish": ("seconds", "version"),
    "response_length": ("clip_ratio", "max", "mean", "min"),
    "rollout_corr": ("kl", "ess", "prob_diff"),
    "timing_s": ("adv", "gen", "reward", "step", "update_actor", "update_weights"),
}
METRICS = [f"{family}/{name}" for family, names in FAMILIES.items() for name in names]
SCRIPT = "<script>window.planted = true</script><img src=x onerror='window.planted = true'>"


def metrics_line(step: int, total: int, seed: int = 0) -> dict[str, Any]:
    """What a learning run would report at a step."""
    noise = random.Random(f"{seed} {step}")
    share = step / max(1, total)
    rise = 1 - math.exp(-(2 + seed % 3) * share)
    values = {name: 1 + 0.2 * noise.random() + 0.1 * seed for name in METRICS}
    values |= {
        "critic/score/mean": 0.1 + 0.8 * rise + 0.04 * noise.gauss(0, 1),
        "actor/entropy": 0.8 * (1 - 0.8 * rise) + 0.02 * noise.random(),
        "actor/kl_loss": 0.01 + 0.05 * rise * noise.random(),
        "actor/ppo_kl": 0.002 + 0.02 * rise * noise.random(),
        "actor/lr": 1e-4,
        "actor/grad_norm": 0.5 + abs(noise.gauss(0, 0.4)),
        "response_length/mean": 120 + 80 * rise + 6 * noise.gauss(0, 1),
        "perf/throughput": 5200 + 300 * noise.gauss(0, 1),
        "perf/total_num_tokens": 18_000.0,
        "perf/cpu_memory_used_gb": 1.2 + 0.3 * rise,
        "perf/max_memory_allocated_gb": 21 + 2 * noise.random(),
        "timing_s/gen": 1.6 + 0.3 * noise.random(),
        "timing_s/reward": 0.2,
        "timing_s/adv": 0.02,
        "timing_s/update_actor": 1.1 + 0.2 * noise.random(),
        "timing_s/update_weights": 0.05,
        "timing_s/step": 3.5,
    }
    return {"step": step, **dict(sorted(values.items()))}


def sample(step: int, row: int, k: int = 0, **changes: Any) -> dict[str, Any]:
    record = {
        "input": f"<|im_start|>user\n{row}+{row + 1}=<|im_end|>\n<|im_start|>assistant\n",
        "output": str(2 * row + 1 + (k % 3)),
        "gts": str(2 * row + 1),
        "score": float(k % 3 == 0),
        "step": step,
        "uid": f"train:addition, row {row}",
        "data_source": "addition",
        "stop_reason": "eos" if k % 4 else "length",
        "turns": 1,
        "policy_version": max(0, step - 1),
    }
    return record | changes


def samples(step: int, rows: int = 4, per_prompt: int = 4) -> list[dict[str, Any]]:
    return [sample(step, row, k) for row in range(rows) for k in range(per_prompt)]


def write_lines(path: Path, records: Iterable[Mapping[str, Any]], mode: str = "w") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode, encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def write_run(folder: Path, steps: int = 5, *, seed: int = 0, total: int | None = None, finished: bool = True) -> Path:
    """A whole run: metrics with validation lines between, events, dumps and a config."""
    total = total or steps
    lines: list[dict[str, Any]] = [{"step": 0, "val-core/addition/reward/mean@1": 0.2, "timing_s/testing": 0.4}]
    for step in range(1, steps + 1):
        lines.append(metrics_line(step, total, seed))
        if step % 5 == 0 or step == total:
            score = 0.2 + 0.7 * (1 - math.exp(-3 * step / total))
            lines.append({"step": step, "val-core/addition/reward/mean@1": score, "timing_s/testing": 0.4})
    write_lines(folder / "metrics.jsonl", lines)
    events: list[dict[str, Any]] = [{"time": 1_790_000_000.0, "kind": "started"}]
    if finished:
        events += [
            {"time": 1_790_000_300.0, "kind": "checkpoint_saved", "step": steps, "path": "checkpoints/global_step"},
            {"time": 1_790_000_301.0, "kind": "finished"},
        ]
    write_lines(folder / "events.jsonl", events)
    for step in (1, steps):
        write_lines(folder / "rollouts" / f"{step}.jsonl", samples(step))
        write_lines(folder / "validation" / f"{step}.jsonl", [sample(step, row) for row in range(4)])
    (folder / "config.yaml").write_text(
        f"data:\n  train_files: ['task:addition']\n  train_batch_size: {8 * (1 + seed)}\n"
        f"actor_rollout_ref:\n  model: {{path: 'builtin:tiny'}}\n  actor:\n    optim: {{lr: {1e-4 * (1 + seed)}}}\n"
        f"algorithm: {{adv_estimator: {'grpo' if seed % 2 == 0 else 'rloo'}}}\n"
        f"trainer: {{seed: {seed}, total_training_steps: {total}, project_name: null}}\n",
        encoding="utf-8",
    )
    (folder / "console.log").write_text(f"podium: a run, {total} steps\nstep {steps}/{total}  reward 0.5\n")
    return folder


def write_long_metrics(path: Path, steps: int) -> None:
    """Many steps, quickly: the numbers of a few real lines over and over, under their own step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tails = [json.dumps(metrics_line(step, 1000)).partition(", ")[2] for step in range(1, 1001)]
    with path.open("w", encoding="utf-8") as file:
        for step in range(steps):
            file.write(f'{{"step": {step}, {tails[step * 1000 // steps]}\n')


def search_sample(step: int, row: int) -> dict[str, Any]:
    """An episode with turns and observations."""
    text = (
        "<think>I should look this up.</think><search>capital of Norway</search>"
        "<information>Oslo is the capital of Norway.</information><answer>Oslo</answer>"
    )
    return sample(step, row, output=text, turns=2, score=1.0, exact_match=1.0, format_reward=0.2, data_source="nq")


def token_sample(step: int, row: int) -> dict[str, Any]:
    """A sample with the per-token columns that a dump may have."""
    tokens = ["The", " answer", " is", " ", "4", "2", "."]
    return sample(
        step,
        row,
        output="".join(tokens),
        tokens=tokens,
        log_probs=[-0.1, -0.4, -0.05, -2.2, -1.3, -4.8, -0.01],
        advantages=[0.5, 0.5, 0.5, -0.5, 1.0, -1.0, 0.5],
        response_mask=[1, 1, 1, 0, 1, 1, 1],
    )
