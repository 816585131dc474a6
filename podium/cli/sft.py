"""`podium sft` and `podium train-reward`: learning from files of finished responses, before reinforcement.

Nothing heavy is imported before the settings are known to be right.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from podium.cli.train import ending, keep_traceback, split_words
from podium.errors import RunFolderBusy

if TYPE_CHECKING:
    from podium.config.schema_sft import SupervisedConfig

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

SFT_EPILOG = """\
Rows have a prompt and a response (or completion, or answer), or messages that end
with the assistant's turn. Built-in tasks give their right answers.

examples:
  podium sft data.train_files=chats.parquet model.path=./base optim.lr=1e-5
  podium sft recipes/rlhf/sft.yaml
  podium sft data.train_files=task:addition optim.lr=1e-3 trainer.total_epochs=2

The model is in checkpoints/global_step_<n>/hf of the run folder, as a Hugging
Face folder. The same command again goes on from the newest checkpoint.
"""
REWARD_EPILOG = """\
Rows have prompt, chosen and rejected (text or messages), and perhaps margin.
Built-in tasks give pairs of right and wrong answers.

examples:
  podium train-reward pairs.parquet model.path=./sft-model optim.lr=1e-5
  podium train-reward recipes/rlhf/reward.yaml
  podium train-reward task:addition optim.lr=1e-3

The result goes into `podium train` as reward_model.enable=true
reward_model.model.path=<run folder>/checkpoints/global_step_<n>/hf.
"""
DATA_SUFFIXES = (".parquet", ".jsonl")


def add_parsers(commands: Commands) -> None:
    sft = _add(commands, "sft", "fine-tune a model on responses", "recipe, key=value", SFT_EPILOG)
    sft.set_defaults(run=run_sft)
    words = "pairs or recipe, key=value"
    reward = _add(commands, "train-reward", "train a reward model on pairs", words, REWARD_EPILOG)
    reward.set_defaults(run=run_train_reward)


def _add(commands: Commands, name: str, purpose: str, words: str, epilog: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=purpose,
        description=f"{purpose[0].upper()}{purpose[1:]}.",
        epilog=epilog,
        usage=f"podium {name} [{words.split(',')[0]}] [key=value ...] [--debug]",
    )
    parser.add_argument("words", nargs="*", metavar=words, help="what to read first, then settings")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def run_sft(arguments: argparse.Namespace) -> int:
    from podium.config.schema_sft import load_sft_config
    from podium.trainer.stopping import ends_on_interrupt

    with ends_on_interrupt():
        return _run(load_sft_config(*split_words(arguments.words)), "SFT")


def run_train_reward(arguments: argparse.Namespace) -> int:
    from podium.config.schema_sft import load_reward_config
    from podium.trainer.stopping import ends_on_interrupt

    with ends_on_interrupt():
        return _run(load_reward_config(*split_words(pairs_as_setting(arguments.words))), "REWARD")


def pairs_as_setting(words: list[str]) -> list[str]:
    """Files of pairs that come first are `data.train_files`; a recipe may still stand before the settings."""
    files = [word for word in words if _is_data(word)]
    rest = [word for word in words if not _is_data(word)]
    return [*rest, f"data.train_files=[{','.join(map(_quoted, files))}]"] if files else rest


def _is_data(word: str) -> bool:
    return word.startswith("task:") or ("=" not in word and word.endswith(DATA_SUFFIXES))


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"


def _run(config: SupervisedConfig, job: str) -> int:
    from podium.config.schema_sft import check_supervised

    check_supervised(config)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in `podium train`
    from podium.trainer import supervised

    try:
        return ending(supervised.run_supervised(config, getattr(supervised, job)), config.trainer.runtime)
    except RunFolderBusy:
        raise  # the record in that folder is the other's
    except BaseException as error:
        keep_traceback(error, Path(config.trainer.default_local_dir) / "console.log")
        raise
