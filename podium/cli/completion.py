"""`podium completion`: the shell asks for the words that could come next.

The printed scripts call `podium completion --words` with what is typed so far; only names of commands, options,
recipes and settings are looked up, nothing heavy is imported.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from podium.errors import ConfigError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EPILOG = """\
examples:
  source <(podium completion bash)              in ~/.bashrc
  source <(podium completion zsh)               in ~/.zshrc, after compinit
  podium completion fish > ~/.config/fish/completions/podium.fish
"""
SCRIPTS = {
    "bash": """\
_podium() {
  local IFS=$'\\n' cur="${COMP_WORDS[COMP_CWORD]}"
  COMP_WORDBREAKS="${COMP_WORDBREAKS//=}"
  COMPREPLY=($(compgen -W "$(podium completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" -- "$cur"))
  [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _podium podium
""",
    "zsh": """\
_podium() {
  local -a found
  found=("${(@f)$(podium completion --words "${words[@]:1:$((CURRENT-1))}" 2>/dev/null)}")
  compadd -S '' -- $found
  _files
}
compdef _podium podium
""",
    "fish": """\
complete -c podium -a '(podium completion --words (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
""",
}
WITH_SETTINGS = ("train", "check", "bench", "eval")


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "completion",
        help="words for the shell to complete",
        description="Print a completion script for a shell.",
        epilog=EPILOG,
        usage="podium completion bash|zsh|fish",
    )
    parser.add_argument("words", nargs="*", metavar="shell", help="bash, zsh or fish")
    parser.add_argument("--words", dest="typed", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=lambda arguments: run(arguments, commands))


def run(arguments: argparse.Namespace, commands: Commands) -> int:
    if arguments.typed is not None:
        sys.stdout.write("\n".join(candidates(arguments.typed, commands)) + "\n")
        return 0
    if len(arguments.words) != 1 or arguments.words[0] not in SCRIPTS:
        raise ConfigError(f"podium completion needs a shell: {', '.join(SCRIPTS)}")
    sys.stdout.write(SCRIPTS[arguments.words[0]])
    return 0


def candidates(typed: list[str], commands: Commands) -> list[str]:
    """What could stand in the place of the last word."""
    before, current = typed[:-1], typed[-1] if typed else ""
    if not before:
        return [name for name in commands.choices if name.startswith(current)]
    parser = commands.choices.get(before[0])
    if parser is None:
        return []
    if current.startswith("-"):
        return [option for option in parser._option_string_actions if option.startswith(current)]
    words = []
    if before[0] in WITH_SETTINGS:
        from podium.config.load import recipe_names
        from podium.config.names import ALIASES, leaves

        words = [f"{key}=" for key in [*leaves(), *ALIASES]]
        if len(before) == 1:
            words += recipe_names()
    return [word for word in words if word.startswith(current)]
