"""`podium runs`: the runs of a folder in a table."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podium.errors import ConfigError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EPILOG = """\
Newest first: how each run stands, its step, reward and validation score;
below them why a run crashed.

examples:
  podium runs
  podium runs runs/podium --json
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "runs",
        help="list runs and how they stand",
        description="List runs and how they stand.",
        epilog=EPILOG,
        usage="podium runs [folder] [--json]",
    )
    parser.add_argument("words", nargs="*", metavar="folder", help="a folder of runs (default: runs)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if len(arguments.words) > 1:
        raise ConfigError(f"podium runs takes one folder, not {len(arguments.words)}: {' '.join(arguments.words)}")
    from podium.dashboard.folders import RunsFolder
    from podium.dashboard.runs import RunStore

    if not arguments.words and not Path("runs").is_dir():
        sys.stdout.write("there are no runs here yet; `podium train quickstart` makes one\n")
        return 0
    store = RunStore(RunsFolder(arguments.words[0] if arguments.words else "runs"))
    found = sorted((run.summary() for run in store.runs()), key=lambda shown: -(shown["updated_at"] or 0.0))
    if arguments.json:
        import json

        for shown in found:
            sys.stdout.write(json.dumps({key: value for key, value in shown.items() if key != "versions"}) + "\n")
        return 0
    if not found:
        sys.stdout.write(f"no runs in {store.folders.root}; `podium train quickstart` makes one\n")
        return 0
    _table(found)
    return 0


def _table(found: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("run", "status", "step", "reward", "validation", "last written"):
        table.add_column(name, no_wrap=name != "run")
    for shown in found:
        total = shown["total_steps"]
        table.add_row(
            shown["id"] or ".",
            shown["status"],
            f"{shown['step']}/{total}" if total else str(shown["step"]),
            _number(shown["headline"].get("reward")),
            f"{_number(shown['validation']['first'])} → {_number(shown['validation']['last'])}",
            _age(shown["updated_at"]),
        )
    console = Console(highlight=False)
    console.print(table)
    for shown in found:
        if shown["status"] == "crashed" and shown["reason"]:
            console.print(f"{shown['id'] or '.'} crashed: {shown['reason']}", markup=False)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _age(updated_at: float | None) -> str:
    if updated_at is None:
        return "-"
    from podium.tracking.headline import duration

    return f"{duration(max(0.0, time.time() - updated_at))} ago"
