"""`podium export`: a run's model as a Hugging Face folder, from any of its checkpoints."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from podium.errors import ConfigError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EPILOG = """\
The first word is a run folder or a checkpoint, the second a new folder. The
checkpoint's checksums are verified first. What comes out loads with
from_pretrained and with vLLM.

examples:
  podium export runs/podium/quickstart model
  podium export runs/podium/quickstart model --step 100 --dtype bfloat16
  podium export runs/podium/quickstart/checkpoints/global_step_100 model
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "export",
        help="a trained model as a Hugging Face folder",
        description="Write a trained model as a Hugging Face folder.",
        epilog=EPILOG,
        usage="podium export RUN_OR_CHECKPOINT OUT [--step N] [--dtype TYPE] [--adapter]",
    )
    parser.add_argument("words", nargs="*", metavar="run or checkpoint, out", help="from where, to where")
    parser.add_argument("--step", type=int, help="the step to export (default: the newest complete one)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="the number type of the weights")
    parser.add_argument("--adapter", action="store_true", help="the LoRA adapter alone, not merged")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if len(arguments.words) != 2:
        raise ConfigError(
            f"podium export takes a run or checkpoint and a new folder, got {len(arguments.words)} words; "
            "for example: podium export runs/podium/quickstart model"
        )
    from podium.checkpoint.export import export_checkpoint
    from podium.checkpoint.store import find_checkpoint

    source, target = (Path(word) for word in arguments.words)
    if not source.is_dir():
        raise ConfigError(f"there is no folder {source}; name a run folder or a checkpoint")
    checkpoint = find_checkpoint(source, arguments.step)
    export_checkpoint(checkpoint, target, arguments.dtype, arguments.adapter)
    sys.stdout.write(f"{checkpoint.name} is in {target}\n")
    return 0
