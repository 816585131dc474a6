"""The `podium` command: reads the arguments, runs the command, turns errors into one readable paragraph.

Only argparse is imported up front, so that `podium --help` is instant; each command imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import textwrap
import traceback
from collections.abc import Sequence
from typing import Any

from podium import __version__
from podium.cli import (
    bench,
    check,
    completion,
    dashboard,
    data,
    evaluate,
    export,
    generate,
    import_config,
    retrieve,
    runs,
    serve,
    sft,
    train,
)
from podium.errors import ConfigError, PodiumError
from podium.plugins import nearest

HEADER = "Reinforcement learning for language models, from a laptop CPU to a Ray cluster."
GROUPS = (
    ("train", "sft", "train-reward", "check"),
    ("eval", "generate", "chat", "serve", "export"),
    ("runs", "dashboard", "bench"),
    ("data", "retrieve", "import-config", "completion"),
)
"""The commands in the order of a run: make, use, watch, prepare."""
FOOTER = """\
examples:
  podium train quickstart               recipes/quickstart.yaml
  podium check my.yaml                  find mistakes before they cost an hour
  podium train my.yaml trainer.seed=7   a recipe of yours, one setting changed

`podium <command> --help` says more; --debug shows tracebacks of errors.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code: 0 done, 1 failed, 2 wrong settings or arguments, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        _refuse_unknown_command(words)
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
        return _interrupted()
    except BrokenPipeError:  # `podium runs | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except PodiumError as error:
        if _interrupt_is_behind(error):
            return _interrupted()
        _report(error, str(error), debug)
        return 2 if isinstance(error, ConfigError) else 1
    except Exception as error:  # noqa: BLE001 (fault boundary: the last one)
        if _interrupt_is_behind(error):
            return _interrupted()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"unexpected {type(error).__name__} in {frame.name} ({frame.filename}:{frame.lineno}): {error}"
        _report(error, f"{text}\nRun again with --debug for the traceback.", debug)
        return 1


def _interrupted() -> int:
    sys.stderr.write("podium: interrupted\n")
    return 130


def _interrupt_is_behind(error: BaseException) -> bool:
    """Whether a Ctrl-C led to it: one that hits a library in the middle of something may come out as another error."""
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if isinstance(each, KeyboardInterrupt):
            return True
        seen.append(each)
        waiting += [one for one in (each.__cause__, each.__context__) if one is not None and one not in seen]
    return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="podium",
        description=HEADER,
    )
    parser.add_argument("--version", action="version", version=f"podium {__version__}")
    command: Any = functools.partial(argparse.ArgumentParser, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands: Any = parser.add_subparsers(title="commands", metavar="<command>", parser_class=command)
    train.add_parser(commands)
    sft.add_parsers(commands)
    dashboard.add_parser(commands)
    export.add_parser(commands)
    data.add_parser(commands)
    serve.add_parser(commands)
    retrieve.add_parser(commands)
    for command in (check, evaluate, runs, bench, import_config, completion):
        command.add_parser(commands)
    generate.add_parsers(commands)
    setattr(parser, "format_help", lambda: _help(commands))  # noqa: B010  (a method, replaced on this object)
    parser.set_defaults(run=lambda _: _show_help(parser))
    return parser


def _help(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> str:
    """One screen: every command on a line, in groups."""
    purpose = {action.dest: action.help for action in commands._choices_actions}
    lines = ["usage: podium <command> ...", "", HEADER]
    for group in GROUPS:
        lines += ["", *(f"  {name:14} {purpose[name]}" for name in group if name in purpose)]
    return "\n".join([*lines, "", FOOTER])


def _refuse_unknown_command(words: Sequence[str]) -> None:
    known = [name for group in GROUPS for name in group]
    if words and not words[0].startswith("-") and words[0] not in known:
        raise ConfigError(f"there is no command {words[0]!r}{nearest(words[0], known)}")


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
