"""`podium import-config`: a verl configuration file or launch script as a recipe, with a list of what was left out."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podium.errors import ConfigError

if TYPE_CHECKING:
    from podium.config.verl_keys import Translation

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EPILOG = """\
The file is verl's YAML (resolved: the config.yaml of a run, or one without
Hydra's defaults) or a shell script that calls verl.trainer.main_ppo with
key=value words; its own variables, defaults and whole-number sums are filled in.
The recipe goes to standard output, or to --out, with verl's defaults written
out where Podium's differ; what has no counterpart is listed with the reason.

examples:
  podium import-config run_qwen2-7b.sh --out my.yaml
  podium import-config verl/config.yaml > my.yaml
  podium check my.yaml
"""
SETTING = re.compile(r"^\+{0,2}([A-Za-z_]\w*(?:\.\w+)*)=(.*)$", re.DOTALL)
REFERENCE = re.compile(r"\$\{(\w+(?:\.\w+)+)\}")
"""Hydra's `${a.b}`: the value of another setting."""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "import-config",
        help="a verl configuration as a recipe",
        description="Translate a verl configuration into a recipe.",
        epilog=EPILOG,
        usage="podium import-config verl.yaml|script.sh [--out recipe.yaml]",
    )
    parser.add_argument("words", nargs="*", metavar="file", help="verl's YAML file or launch script")
    parser.add_argument("--out", metavar="recipe.yaml", help="write the recipe there")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if len(arguments.words) != 1:
        raise ConfigError("podium import-config takes one file: verl's YAML or a launch script")
    from podium.config.verl_keys import translate, with_defaults

    source = Path(arguments.words[0])
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} cannot be read: {error}") from error
    values = read_yaml(text) if source.suffix in (".yaml", ".yml") else read_script(text)
    if not values:
        raise ConfigError(f"{source} has no settings: neither a YAML mapping nor key=value words were found")
    translation = translate(with_defaults(values))
    recipe = render(translation, source.name)
    if arguments.out:
        Path(arguments.out).write_text(recipe, encoding="utf-8")
    else:
        sys.stdout.write(recipe)
    report(translation, values)
    return 0


def read_yaml(text: str) -> dict[str, Any]:
    import yaml

    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"the file is not valid YAML: {error}") from error
    return dict(_flatten(_resolved(tree), "")) if isinstance(tree, dict) else {}


def _resolved(tree: dict[str, Any]) -> dict[str, Any]:
    """With `${a.b}` filled in, where the file holds what it names."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        filled = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    except OmegaConfBaseException:
        return tree
    assert isinstance(filled, dict)
    return {str(name): value for name, value in filled.items()}


def _flatten(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value and name not in ("override_config", "ray_init", "ray_kwargs", "_target_"):
            yield from _flatten(value, f"{key}.")
        else:
            yield key, _typed(value)


def read_script(text: str) -> dict[str, Any]:
    """The a.b=c words of the script, and those without a dot that are settings."""
    import yaml

    from podium.cli.shell_words import read_words
    from podium.config.names import leaves

    written: dict[str, str] = {}
    for word in read_words(text):
        found = SETTING.match(word)
        if found and ("." in found[1] or found[1] in leaves()):
            written[found[1]] = found[2]
    values: dict[str, Any] = {}
    for key, value in written.items():
        filled = REFERENCE.sub(lambda found: written.get(found[1], found[0]), value)
        try:
            values[key] = _typed(yaml.safe_load(filled))
        except yaml.YAMLError:
            values[key] = filled
    return values


def _typed(value: Any) -> Any:
    """YAML 1.1 reads 1e-6 as text."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):
        return float(value)
    return None if value == "None" else value


def render(translation: Translation, name: str) -> str:
    import yaml

    from podium.config.sources import ConfigDumper

    tree: dict[str, Any] = {}
    for key, value in translation.settings.items():
        *parents, last = key.split(".")
        branch = tree
        for part in parents:
            branch = branch.setdefault(part, {})
        branch[last] = value
    text: str = yaml.dump(tree, Dumper=ConfigDumper, sort_keys=False, allow_unicode=True, width=120)
    return f"# From {name}, by podium import-config.\n{text}"


def report(translation: Translation, values: dict[str, Any]) -> None:
    """What became of the keys, on stderr."""
    left = translation.left
    sys.stderr.write(f"{len(values) - len(left)} of {len(values)} settings translated.\n")
    if left:
        sys.stderr.write(f"{len(left)} were not:\n")
        for key, reason in left.items():
            sys.stderr.write(f"  {key} = {values[key]}: {reason}\n")
    for note in translation.notes:
        sys.stderr.write(f"  note: {note}\n")
    for problem in problems_of(translation):
        sys.stderr.write(f"  to repair: {problem}\n")


def problems_of(translation: Translation) -> list[str]:
    """What is not filled in, and what `podium train` would say about the rest of the recipe."""
    import json

    from podium.config import check_config, load_config

    unfilled = {key: value for key, value in translation.settings.items() if "$" in str(value) or "`" in str(value)}
    problems = [f"{key} = {value}: only the shell knows; write what it stands for" for key, value in unfilled.items()]
    words = [f"{key}={json.dumps(value)}" for key, value in translation.settings.items() if key not in unfilled]
    try:
        check_config(load_config(None, words))
    except ConfigError as error:
        first, *others = str(error).splitlines()
        problems += [line.removeprefix("- ").removeprefix("the command line: ") for line in others or [first]]
    return problems
