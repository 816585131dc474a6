"""Whole runs on Ray under `strategy: deepspeed`: the weights of one worker without it, learning, and a run that is
killed and goes on."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from podium.single_controller import shutdown_ray
from podium.tracking import read_metrics

Run = Callable[..., list[dict[str, Any]]]
ACTOR = "actor_rollout_ref.actor"
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs podium[deepspeed]"),
    pytest.mark.timeout(3600),
]


@pytest.fixture(scope="module", autouse=True)
def ray_ends_with_the_module() -> Iterator[None]:
    yield
    shutdown_ray()


def two_workers(stage: int) -> list[str]:
    words = ["trainer.runtime=ray", "trainer.n_gpus_per_node=2", f"{ACTOR}.strategy=deepspeed"]
    return [*words, f"{ACTOR}.deepspeed.zero_stage={stage}", f"critic.deepspeed.zero_stage={stage}"]


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (2, [f"{ACTOR}.ppo_mini_batch_size=3", "data.train_batch_size=9"]),
        (3, ["algorithm.adv_estimator=gae", f"{ACTOR}.use_kl_loss=true"]),
    ],
    ids=["ZeRO-2, grpo, three mini-batches", "ZeRO-3, ppo with KL loss"],
)
def test_two_workers_train_the_same_parameters_as_one(run: Run, tmp_path: Path, stage: int, words: list[str]) -> None:
    words = [*words, "trainer.save_freq=1", f"{ACTOR}.optim.lr=1e-4"]
    alone = run(*words, folder="alone")
    together = run(*words, *two_workers(stage), folder="together")
    assert together[0]["critic/score/mean"] == alone[0]["critic/score/mean"], "the same samples"
    for name in ("actor/pg_loss", "actor/grad_norm", "actor/entropy"):
        assert together[0][name] == pytest.approx(alone[0][name], abs=1e-5), name
    one, two = (
        load_file(tmp_path / folder / "checkpoints" / "global_step_1" / "hf" / "model.safetensors")
        for folder in ("alone", "together")
    )
    assert one.keys() == two.keys()
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5
    on_one = run(*words, "trainer.total_training_steps=3", folder="together")
    assert on_one[-1]["step"] == 3, "goes on with one worker and without DeepSpeed"


LEARN = [
    *("data.train_files=[task:addition]", "data.val_files=[task:addition?rows=128]", "data.train_batch_size=32"),
    *("data.max_prompt_length=64", "data.max_response_length=8", "actor_rollout_ref.rollout.n=16"),
    *("actor_rollout_ref.rollout.kv_cache_gb=0.1", f"{ACTOR}.optim.lr=4e-4"),
    *("trainer.total_training_steps=16", "trainer.test_freq=16", "trainer.save_freq=4", "trainer.max_ckpt_to_keep=2"),
    *("trainer.logger=[]", "trainer.async_save=false"),
]
CLOCKS = ("timing", "perf/", "publish/seconds")


def start(folder: Path, stage: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "podium.cli.main", "train", *LEARN, *two_workers(stage)]
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


@pytest.mark.parametrize("stage", [2, 3])
def test_a_run_learns_and_goes_on_after_a_kill_with_the_metrics_of_an_unbroken_one(stage: int, tmp_path: Path) -> None:
    assert start(tmp_path / "golden", stage).wait(1500) == 0, (tmp_path / "golden.out").read_text()[-3000:]
    golden = without_clocks(tmp_path / "golden")
    scores = [v for step in read_metrics(tmp_path / "golden") for k, v in step.items() if k.startswith("val-core/")]
    print(f"ZeRO-{stage}: validation {scores}")
    assert scores[-1] > scores[0] + 0.15

    child = start(tmp_path / "run", stage)
    while steps_done(tmp_path / "run") < 6 and child.poll() is None:
        time.sleep(0.1)
    child.send_signal(signal.SIGKILL)
    assert child.wait(300) == -signal.SIGKILL, (tmp_path / "run.out").read_text()[-3000:]
    assert start(tmp_path / "run", stage).wait(1500) == 0, (tmp_path / "run.out").read_text()[-3000:]
    assert without_clocks(tmp_path / "run") == golden
