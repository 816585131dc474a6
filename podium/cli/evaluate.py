"""`podium eval`: a model's scores on validation data, by the same code that validates a run."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from podium.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EPILOG = """\
The first word is a run folder (its settings are used too), a checkpoint, a
Hugging Face folder or builtin:tiny; then settings as with `podium train`.

examples:
  podium eval runs/podium/quickstart
  podium eval runs/podium/quickstart --step 20 data.val_files=task:countdown
  podium eval ./model data.val_files=test.parquet --n 8 --temperature 1
  podium eval builtin:tiny data.val_files=task:addition --out answers
"""
MODEL_KEY = "actor_rollout_ref.model.path"
NO_TRAINING = (
    *("trainer.val_only=true", "trainer.resume_mode=disable", "trainer.save_freq=0", "trainer.nnodes=1"),
    *("trainer.n_gpus_per_node=1", "trainer.runtime=local", "trainer.logger=[]", "trainer.max_staleness=0"),
    *("algorithm.adv_estimator=grpo", "critic.enable=false", "algorithm.use_kl_in_reward=false"),
    *("actor_rollout_ref.actor.use_kl_loss=false", "actor_rollout_ref.rollout.n=2", "data.train_batch_size=1"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=1", "trainer.critic_warmup=0", "trainer.total_training_steps=1"),
    *("critic.ppo_mini_batch_size=1", "data.train_data_num=null", "algorithm.filter_groups.enable=false"),
    "trainer.default_hdfs_dir=''",  # nothing is saved, and the run's place need not be reachable from here
)


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "eval",
        help="score a model on validation data",
        description="Score a model on validation data.",
        epilog=EPILOG,
        usage="podium eval MODEL [key=value ...] [--step N] [--n N --temperature T] [--out FOLDER]",
    )
    parser.add_argument("words", nargs="*", metavar="model, key=value", help="the model first, then settings")
    parser.add_argument("--step", type=int, help="a run's checkpoint of this step (default: the newest)")
    parser.add_argument("--n", type=int, default=1, help="samples per prompt: mean@n, best@n, ... (default: 1)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy (the default)")
    parser.add_argument("--out", help="keep answers and metrics in this folder")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if not arguments.words or "=" in arguments.words[0]:
        raise ConfigError("podium eval needs a model first: a run folder, a Hugging Face folder or builtin:tiny")
    model, *overrides = arguments.words
    if not arguments.out:
        with tempfile.TemporaryDirectory() as folder:
            return evaluate(model, overrides, arguments, Path(folder))
    return evaluate(model, overrides, arguments, Path(arguments.out))


def evaluate(model: str, overrides: list[str], arguments: argparse.Namespace, folder: Path) -> int:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in `podium train`
    from podium.config import load_config
    from podium.tracking import read_metrics

    recipe = Path(model) / "config.yaml"
    found = find_or_advise(model, arguments.step, recipe)
    sampling = [f"n={arguments.n}", f"temperature={arguments.temperature}", f"do_sample={arguments.temperature > 0}"]
    words = [
        f"{MODEL_KEY}={found}",
        *(f"actor_rollout_ref.rollout.val_kwargs.{word}" for word in sampling),
        *overrides,
        *NO_TRAINING,
        f"trainer.default_local_dir={folder}",
        "trainer.rollout_data_dir=''",
        "trainer.validation_data_dir=''",
    ]
    config = load_config(recipe if recipe.is_file() else None, words)
    if not config.data.val_files:
        raise ConfigError("there is nothing to score: set data.val_files=test.parquet, or a built-in task")
    config.data.train_files = list(config.data.val_files)  # never drawn from; a trainer has some
    from podium.trainer.main_ppo import run_ppo

    code = run_ppo(config)
    metrics = {
        name: value for record in read_metrics(folder) for name, value in record.items() if name.startswith("val")
    }
    for name, value in sorted(metrics.items()):
        sys.stdout.write(f"{name:50} {value:.4g}\n")
    if arguments.out:
        sys.stdout.write(f"answers: {folder / 'validation'}\n")
    return code


def find_or_advise(model: str, step: int | None, recipe: Path) -> str:
    """The model to score; a run that saved none is told with the command that scores what it started from."""
    from podium.config import load_config
    from podium.serving.server import find_model, start_of

    try:
        return find_model(model, step)
    except CheckpointError as error:
        if start := start_of(recipe.parent):
            files = ",".join(load_config(recipe).data.val_files) or "test.parquet"
            error.add_note(f"To score it: podium eval {start} {shlex.quote(f'data.val_files=[{files}]')}")
        raise
