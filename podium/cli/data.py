"""`podium data`: public data sets from local copies, and generated ones, as parquet files that `podium train` reads."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EPILOG = """\
data sets:
  gsm8k                  question and answer, the number behind ####
  math                   problem and solution, the answer in its \\boxed{}
  nq_search              question and golden_answers, for training with search
  jsonl                  any rows that podium train reads, in verl's columns
  pairs                  better and worse answers, from the dumps of a run
  reasoning_gym:<task>   problems made by the reasoning-gym package

Files are jsonl, json or parquet, or folders of such files; nothing is
downloaded.

examples:
  podium data gsm8k downloads/gsm8k/train.jsonl --out data/gsm8k_train.parquet
  podium data math downloads/MATH/test --split val --out data/math_val.parquet
  podium data pairs runs/podium/x/rollouts --out data/pairs.parquet
  podium data reasoning_gym:leg_counting --rows 2000 --out data/legs.parquet
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "data",
        help="write data sets as parquet files",
        description="Write a data set as a parquet file that `podium train` reads.",
        epilog=EPILOG,
        usage="podium data <data set> [file ...] --out <file.parquet> [options]",
    )
    parser.add_argument("words", nargs="+", metavar="data set, files", help="the data set first, then its local files")
    parser.add_argument("--out", required=True, metavar="<file.parquet>", help="the file to write")
    parser.add_argument("--split", choices=("train", "val"), default="train", help="noted in every row")
    parser.add_argument("--rows", type=int, default=1000, metavar="n", help="how many rows to make (reasoning_gym)")
    parser.add_argument("--seed", type=int, default=0, metavar="n", help="the seed of rows that are made")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from podium.data.importers import import_rows, write_rows
    from podium.errors import ConfigError

    name, *files = arguments.words
    target = Path(arguments.out).expanduser()
    if target.suffix != ".parquet":
        raise ConfigError(f"--out {arguments.out}: the name must end in .parquet")
    if arguments.rows < 1:
        raise ConfigError(f"--rows {arguments.rows} must be at least 1")
    rows = write_rows(import_rows(name, files, arguments.split, arguments.rows, arguments.seed), target)
    sys.stdout.write(f"{rows} rows written to {target}\n")
    return 0
