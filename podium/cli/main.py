"""The `podium` command: reads the arguments, runs the command, turns errors into one readable paragraph.

Only argparse is imported up front, so that `podium --help` is instant; each command imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
import traceback
from collections.abc import Sequence

from podium import __version__
from podium.cli import dashboard, data, export, sft, train
from podium.errors import ConfigError, PodiumError

EPILOG = """\
examples:
  podium train                          the built-in defaults
  podium train quickstart               recipes/quickstart.yaml
  podium train my.yaml trainer.seed=7   a recipe of yours, one setting changed
  podium train my.yaml --dry-run        what would run, without running it
  podium sft my.yaml                    supervised fine-tuning, beforehand
  podium train-reward pairs.parquet     a reward model from pairs of responses
  podium dashboard                      curves and samples in a browser
  podium export runs/podium/x model     its model as a Hugging Face folder

`podium <command> --help` says more about a command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code: 0 done, 1 failed, 2 wrong settings or arguments, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments, rest = _parser().parse_known_args(words)
        for word in rest:  # argparse leaves words that stand behind an option; real leftovers are unknown options
            if word.startswith("-"):
                raise ConfigError(_unknown_option(word))
            arguments.words.append(word)
        code = arguments.run(arguments)
        assert isinstance(code, int)
        return code
    except SystemExit as stop:  # argparse ends --help, --version and bad arguments this way
        return stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:
        sys.stderr.write("podium: interrupted\n")
        return 130
    except PodiumError as error:
        _report(error, str(error), "--debug" in words)
        return 2 if isinstance(error, ConfigError) else 1
    except Exception as error:  # noqa: BLE001 (fault boundary: the last one)
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"unexpected {type(error).__name__} in {frame.name} ({frame.filename}:{frame.lineno}): {error}"
        _report(error, f"{text}\nRun again with --debug for the traceback.", "--debug" in words)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="podium",
        description="Reinforcement learning for language models, from a laptop CPU to a Ray cluster.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"podium {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="<command>")
    train.add_parser(commands)
    sft.add_parsers(commands)
    dashboard.add_parser(commands)
    export.add_parser(commands)
    data.add_parser(commands)
    parser.set_defaults(run=lambda _: _show_help(parser))
    return parser


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return 2


def _unknown_option(word: str) -> str:
    if word.startswith("--") and "=" in word:
        return f"{word!r} is not an option; a setting is written without dashes: {word.lstrip('-')}"
    return f"{word!r} is not an option; podium --help lists them"


def _report(error: BaseException, text: str, debug: bool) -> None:
    """One paragraph on stderr, wrapped where it is prose; with the traceback before it when asked."""
    if debug:
        sys.stderr.write("".join(traceback.format_exception(error)))
    notes: list[str] = getattr(error, "__notes__", [])
    first, *others = text.splitlines() + notes
    lines = _wrap(f"podium: error: {first}")
    for line in others:
        lines += [f"  {part}" for part in (_wrap(line) if line.startswith("- ") else [line])]
    sys.stderr.write("\n".join(lines) + "\n")


def _wrap(line: str) -> list[str]:
    return textwrap.wrap(line, 98, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.exit(main())
