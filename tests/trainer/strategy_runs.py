"""What whole runs show of a strategy that shares a model among two Ray workers: `words` choose it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from podium.tracking import read_metrics

Run = Callable[..., list[dict[str, Any]]]
ACTOR = "actor_rollout_ref.actor"
LEARN = [
    *("data.train_files=[task:addition]", "data.val_files=[task:addition?rows=128]", "data.train_batch_size=32"),
    *("data.max_prompt_length=64", "data.max_response_length=8", "actor_rollout_ref.rollout.n=16"),
    *("actor_rollout_ref.rollout.kv_cache_gb=0.1", f"{ACTOR}.optim.lr=4e-4"),
    *("trainer.total_training_steps=16", "trainer.test_freq=16", "trainer.save_freq=4", "trainer.max_ckpt_to_keep=2"),
    *("trainer.logger=[]", "trainer.async_save=false"),
]
CLOCKS = ("timing", "perf/", "publish/seconds")


def check_that_two_train_as_one(run: Run, folder: Path, algorithm: list[str], words: list[str], within: float) -> None:
    """The same samples, losses and weights as one worker without the strategy, which goes on from there."""
    algorithm = [*algorithm, "trainer.save_freq=1", f"{ACTOR}.optim.lr=1e-4"]
    alone = run(*algorithm, folder="alone")
    together = run(*algorithm, *words, folder="together")
    assert together[0]["critic/score/mean"] == alone[0]["critic/score/mean"], "the same samples"
    for name in ("actor/pg_loss", "actor/grad_norm", "actor/entropy"):
        assert together[0][name] == pytest.approx(alone[0][name], abs=1e-5), name
    one, two = (
        load_file(folder / name / "checkpoints" / "global_step_1" / "hf" / "model.safetensors")
        for name in ("alone", "together")
    )
    assert one.keys() == two.keys()
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < within
    on_one = run(*algorithm, "trainer.total_training_steps=3", folder="together")
    assert on_one[-1]["step"] == 3, "goes on with one worker and without the strategy"


def check_that_a_killed_run_learns_as_an_unbroken_one(folder: Path, words: list[str]) -> None:
    assert start(folder / "golden", words).wait(1500) == 0, (folder / "golden.out").read_text()[-3000:]
    golden = without_clocks(folder / "golden")
    scores = [v for step in read_metrics(folder / "golden") for k, v in step.items() if k.startswith("val-core/")]
    print(f"validation {scores}")
    assert scores[-1] > scores[0] + 0.15

    child = start(folder / "run", words)
    while steps_done(folder / "run") < 6 and child.poll() is None:
        time.sleep(0.1)
    child.send_signal(signal.SIGKILL)
    assert child.wait(300) == -signal.SIGKILL, (folder / "run.out").read_text()[-3000:]
    assert start(folder / "run", words).wait(1500) == 0, (folder / "run.out").read_text()[-3000:]
    assert without_clocks(folder / "run") == golden


def start(folder: Path, words: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "podium.cli.main", "train", *LEARN, *words]
    with Path(f"{folder}.out").open("ab") as output:
        return subprocess.Popen(
            [*command, f"trainer.default_local_dir={folder}"], stdout=output, stderr=output, env=dict(os.environ)
        )


def without_clocks(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in step.items() if not k.startswith(CLOCKS)} for step in read_metrics(folder)]


def steps_done(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return max((json.loads(line).get("step", 0) for line in lines if line.endswith("}")), default=0)
