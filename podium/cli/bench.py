"""`podium bench`: how fast a run's steps are on this machine, phase by phase.

It makes a few real steps of the run and throws the result away. Side-by-side comparisons are in bench/.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from typing import TYPE_CHECKING

from podium.cli.train import split_words
from podium.errors import ConfigError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EPILOG = """\
Takes the words of `podium train`. Each number is the median over the steps
after the first.

examples:
  podium bench quickstart
  podium bench my.yaml actor_rollout_ref.rollout.max_num_seqs=512 --steps 5
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "bench",
        help="time a run's steps on this machine",
        description="Time a run's steps on this machine.",
        epilog=EPILOG,
        usage="podium bench [recipe] [key=value ...] [--steps N]",
    )
    parser.add_argument("words", nargs="*", metavar="recipe, key=value", help="a recipe first, then settings")
    parser.add_argument("--steps", type=int, default=4, help="steps to make (default: 4)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.steps < 2:
        raise ConfigError(f"--steps={arguments.steps} must be at least 2: the first step is not counted")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in `podium train`
    from podium.config import load_config
    from podium.tracking import read_metrics

    recipe, overrides = split_words(arguments.words)
    with tempfile.TemporaryDirectory() as folder:
        quiet = ["trainer.save_freq=0", "trainer.val_before_train=false", "trainer.logger=[]"]
        quiet.append("trainer.default_hdfs_dir=''")
        places = [
            f"trainer.default_local_dir={folder}",
            "trainer.rollout_data_dir=''",
            "trainer.validation_data_dir=''",
        ]
        steps = [f"trainer.total_training_steps={arguments.steps}", "trainer.resume_mode=disable"]
        config = load_config(recipe, [*overrides, *quiet, *places, *steps])
        config.data.val_files = []
        from podium.trainer.main_ppo import run_ppo

        code = run_ppo(config)
        records = [record for record in read_metrics(folder) if "timing_s/step" in record][1:]
    for name in sorted({name for record in records for name in record if name.startswith("timing_s/")}):
        seconds = statistics.median(record[name] for record in records if name in record)
        sys.stdout.write(f"{name.removeprefix('timing_s/'):20} {seconds:9.4f} s\n")
    for name, unit in (("perf/throughput", "tokens/s per worker"), ("perf/total_num_tokens", "tokens per step")):
        sys.stdout.write(f"{statistics.median(record[name] for record in records):20,.0f} {unit}\n")
    return code
