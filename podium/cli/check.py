"""`podium check`: look at a run before it costs an hour. Nothing is trained and no worker starts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from podium.cli.train import split_words
from podium.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from podium.checks import Finding

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EPILOG = """\
Takes the words of `podium train`. It reads the settings, the first rows of the
data, the reward on ten rows, the model's configuration, and the machines; it
estimates the memory of each worker and says the largest setting that fits.

examples:
  podium check quickstart
  podium check my.yaml data.train_files=train.parquet
  podium check my.yaml --gpu-memory 80       for a GPU that is not here
  podium check env game.py:Guess             an environment of yours alone

Exit code 0: nothing found; 2: at least one problem, each with its fix.
"""
MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "problem": ("PROBLEM", "bold red")}


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "check",
        help="find mistakes before a run",
        description="Find mistakes before a run.",
        epilog=EPILOG,
        usage="podium check [recipe] [key=value ...] [--gpu-memory GB]",
    )
    parser.add_argument("words", nargs="*", metavar="recipe, key=value", help="a recipe first, then settings")
    parser.add_argument("--gpu-memory", type=float, metavar="GB", help="estimate for a GPU of this size")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from podium.checks import run_checks
    from podium.checks.environment import check_class

    console = Console(highlight=False)
    problems = 0
    if arguments.words[:1] == ["env"]:
        findings = check_class(environment_word(arguments.words))
    else:
        findings = run_checks(*split_words(arguments.words), gpu_memory_gb=arguments.gpu_memory)
    for finding in findings:
        problems += finding.level == "problem"
        show(console, finding)
    ending = (
        "nothing stands in the way" if not problems else f"{problems} problem{'s' * (problems > 1)} to repair first"
    )
    console.print(f"podium check: {ending}", style="bold")
    return 2 if problems else 0


def environment_word(words: list[str]) -> str:
    if len(words) != 2:
        raise ConfigError("podium check env takes one class: podium check env game.py:Guess")
    return words[1]


def show(console: Console, finding: Finding) -> None:
    from rich.table import Table
    from rich.text import Text

    mark, style = MARKS[finding.level]
    line = Table.grid(padding=(0, 1))
    line.add_column(width=7)
    line.add_column(width=11)
    line.add_column()
    line.add_row(Text(mark, style), Text(finding.part, "bold"), Text(finding.text))
    if finding.fix:
        line.add_row("", "", Text.assemble(("fix: ", "bold"), finding.fix))
    console.print(line)
