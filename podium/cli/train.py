"""`podium train`: load, check, and either show the plan or train.

Nothing heavy is imported before the settings are known to be right, and `--dry-run` never starts a process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from podium.errors import ConfigError, RunFolderBusy

if TYPE_CHECKING:
    from podium.config import Config

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EPILOG = """\
A recipe is a YAML file, or the name of one in recipes/. A setting, key=value,
wins over the recipe. The value is YAML; a list is [a,b] or a single item.

examples:
  podium train                               the built-in defaults
  podium train quickstart                    recipes/quickstart.yaml
  podium train quickstart trainer.seed=7 actor_rollout_ref.rollout.n=16
  podium train quickstart trainer.runtime=ray trainer.n_gpus_per_node=2
  podium train data.train_files=train.parquet --dry-run

The run folder, runs/<project>/<experiment>, keeps metrics.jsonl, samples,
checkpoints and config.yaml, which is itself a recipe. The same command again
goes on from the newest checkpoint.
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "train",
        help="train a model by reinforcement",
        description="Train a model by reinforcement.",
        epilog=EPILOG,
        usage="podium train [recipe] [key=value ...] [--dashboard] [--dry-run] [--debug]",
    )
    parser.add_argument("words", nargs="*", metavar="recipe, key=value", help="a recipe first, then settings")
    parser.add_argument("--dashboard", action="store_true", help="watch the run in a browser; prints the address")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and exit")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from podium.trainer.stopping import ends_on_interrupt

    with ends_on_interrupt():
        return run_or_show(arguments)


def run_or_show(arguments: argparse.Namespace) -> int:
    from podium.config import check_config, config_notes, load_config

    recipe, overrides = split_words(arguments.words)
    config = load_config(recipe, overrides)
    refuse_rows_in_memory(config)
    check_config(config)
    if arguments.dry_run:
        show_plan(config, config_notes(config))
        return 0
    with dashboard_beside(config) if arguments.dashboard else contextlib.nullcontext():
        return train(config)


def refuse_rows_in_memory(config: Config) -> None:
    """The config.yaml of a run that a Python program made (podium.api) names rows that only the program had."""
    if any(word.startswith("memory://") for word in [*config.data.train_files, *config.data.val_files]):
        raise ConfigError(
            "the rows of this run were held by a Python program; run that program again (train("
            "resume_from_checkpoint=True) goes on), or set data.train_files and data.val_files to files"
        )


def train(config: Config) -> int:
    # Threads that wait for work sleep instead of spinning: on a machine that others use too, steps are several times
    # faster. OpenMP reads it when torch is loaded, which is just now.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from podium.trainer.main_ppo import run_ppo

    try:
        return ending(run_ppo(config), config.trainer.runtime)
    except RunFolderBusy:
        raise  # the record in that folder is the other's
    except BaseException as error:
        keep_traceback(error, Path(config.trainer.default_local_dir) / "console.log")
        raise


def ending(code: int, runtime: str) -> int:
    """The run is over and so is the process: Ray's processes go first, and after a stop nothing may keep it (a thread
    that a library left behind, an exit hook that hangs)."""
    if code > 128:
        from podium.trainer.stopping import LEAVE_S, end_within

        end_within(LEAVE_S, code)
    if runtime == "ray":
        from podium.single_controller import shutdown_ray

        shutdown_ray()
    return code


@contextlib.contextmanager
def dashboard_beside(config: Config) -> Iterator[None]:
    """The dashboard for as long as the run lasts: over all runs in the usual place, over this run alone elsewhere."""
    from podium.config.resolve import derived_folders
    from podium.dashboard.server import Beside

    run = Path(config.trainer.default_local_dir)
    is_usual = run == Path(derived_folders(config)["default_local_dir"])
    beside = Beside(run.parts[0] if is_usual else run)
    name = run.relative_to(run.parts[0]).as_posix() if is_usual else run.resolve().name
    sys.stdout.write(f"podium dashboard: {beside.address.url_of(name)}\n")
    sys.stdout.flush()
    try:
        yield
    finally:
        beside.close()


def split_words(words: list[str]) -> tuple[str | None, list[str]]:
    """The recipe, if the first word is one, and the settings."""
    if words and ("=" not in words[0] or os.path.isfile(words[0])):
        return words[0], words[1:]
    return None, words


def show_plan(config: Config, notes: list[str]) -> None:
    from rich.console import Console
    from rich.text import Text

    from podium.config.plan import make_plan, render

    console = Console(highlight=False)
    plan = make_plan(config, count_train_rows(config))
    console.print(Text.assemble(("podium ", "bold"), f"{plan.estimator} on {plan.model}"))
    console.print(render(plan))
    console.print(Text(f"run folder: {plan.run_folder}"))
    for note in notes:
        console.print(Text(f"note: {note}", style="yellow"))
    console.print("Nothing was started.", style="dim")


def count_train_rows(config: Config) -> int | None:
    """Training rows, from file headers where there are some; None when only loading the data would tell."""
    total = 0
    for name in config.data.train_files:
        rows = _count_task(name) if name.startswith("task:") else _count_file(Path(name))
        if rows is None:
            return None
        total += rows
    return total


def _count_task(word: str) -> int:
    from podium.data.tasks import DEFAULT_ROWS, parse_task_word

    rows = parse_task_word(word).rows
    return DEFAULT_ROWS["train"] if rows is None else rows


def _count_file(path: Path) -> int | None:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        try:
            return int(parquet.read_metadata(path).num_rows)
        except (ValueError, OSError):  # not a parquet file; loading it will say what is wrong
            return None
    if path.suffix in (".jsonl", ".ndjson") and path.is_file():
        with path.open("rb") as file:
            return sum(1 for line in file if line.strip())
    return None


def keep_traceback(error: BaseException, path: Path) -> None:
    """The terminal shows one paragraph; the whole story stays in the run folder, if the run got that far."""
    from podium.tracking.folder_lock import held_by_other

    if held_by_other(path.parent):  # the record in that folder is the other's
        return
    try:
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write("".join(traceback.format_exception(error)))
        if isinstance(error, Exception):  # a run that failed before its record began is a failed run too
            note_failure(error, path.parent)
    except OSError:
        return
    error.add_note(f"The traceback is in {path}.")


def note_failure(error: Exception, run: Path) -> None:
    """The last event of the run: readers of the folder tell by it that it failed, and why.

    A run that was finished stays so when a later command fails before it begins.
    """
    from podium.config.secrets import scrub_text
    from podium.tracking.jsonl import JsonLines
    from podium.tracking.runlog import read_events

    turns = [event["kind"] for event in read_events(run) if event.get("kind") in ("started", "resumed", "finished")]
    if turns[-1:] == ["finished"]:
        return
    reason = scrub_text(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    events = JsonLines(run / "events.jsonl")
    events.append({"time": round(time.time(), 3), "kind": "failed", "reason": reason})
    events.close()
