"""Where settings come from: a YAML recipe, or `a.b=c` words. Both become a flat list of `Setting`s.

A setting keeps its place (file and line) for error messages, and its value twice: as YAML reads it, and as the text
that stands there. A field that wants text takes the text, so `mode: off`, `experiment_name: 1e5` and a date stay what
was written. This file does not know which keys exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from podium.errors import ConfigError

COMMAND_LINE = "the command line"

_TAG = "tag:yaml.org,2002:"
_FLOAT = re.compile(
    r"""^[-+]?(?: [0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
                | [0-9][0-9_]*[eE][-+]?[0-9]+
                | \.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)? )$""",
    re.VERBOSE,
)
_NONE = re.compile(r"^None$")


class _Reader(yaml.SafeLoader):
    """YAML with `1e-5` as a number (YAML 1.1 takes it for text) and Python's `None` as null."""


class ConfigDumper(yaml.SafeDumper):
    """Puts text in quotes wherever `_Reader` would take it for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _class in (_Reader, ConfigDumper):
    _class.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))
    _class.add_implicit_resolver(f"{_TAG}null", _NONE, ["N"])


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Unusual line breaks survive only as escapes, in double quotes."""
    escaped = '"' if any(mark in text for mark in "\r\x85\u2028\u2029\ufeff") else None
    node: yaml.ScalarNode = dumper.represent_scalar(f"{_TAG}str", text, style=escaped)
    return node


ConfigDumper.add_representer(str, _represent_text)


@dataclass(frozen=True)
class Setting:
    path: tuple[str, ...]
    """The parts of the key."""
    value: Any
    """As YAML reads it."""
    text: Any
    """The same with every plain word left as text, except null."""
    where: str
    """`file.yaml line 7`, or the command line."""
    source: str
    """The file, or the command line."""

    @property
    def key(self) -> str:
        return ".".join(self.path)


def read_recipe(path: Path, free: Collection[str] = ()) -> list[Setting]:
    """The settings of a YAML file, in order. A mapping under a key in `free` is one value, not a section."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {path} cannot be read: {error}") from error
    root = _compose(text, f"recipe {path}")
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"recipe {path} must hold sections such as `trainer:`, not a list or a single word")
    return list(_flatten(root, (), str(path), free))


def read_words(words: Sequence[str], free: Collection[str] = ()) -> list[Setting]:
    """The settings of `a.b=c` words, in order; the right side is read as YAML.

    `+a.b=c` and `++a.b=c`, as hydra's users write to add a key, mean the same: every key is there already.
    """
    settings: list[Setting] = []
    for word in words:
        key, equals, right = word.partition("=")
        key = re.sub(r"^\+{1,2}", "", key.strip())
        if not equals or not key:
            raise ConfigError(f"{word!r} is not a setting; write key=value, for example trainer.seed=7")
        node = _compose(_quote_items(right), f"the value of {key} ({right!r})") or yaml.ScalarNode(f"{_TAG}null", "")
        path = tuple(key.split("."))
        if _is_section(node, path, free):
            settings.extend(_flatten(node, path, COMMAND_LINE, free))
        else:
            settings.append(_setting(path, node, COMMAND_LINE))
    return settings


def _quote_items(text: str) -> str:
    """Items such as `task:addition?rows=8` in `[...]` get the quotes that YAML wants and a shell would take away."""
    inner = text.strip()
    if not (inner.startswith("[") and inner.endswith("]")) or any(mark in inner[1:-1] for mark in "[]{}'\"\\"):
        return text
    items = [item.strip() for item in inner[1:-1].split(",")]
    if not any(re.search(r"[:?](?!\s)", item) for item in items):
        return text
    return f"[{', '.join(json.dumps(item) if re.search(r'[:?]', item) else item for item in items)}]"


def _is_section(node: yaml.Node, path: tuple[str, ...], free: Collection[str]) -> bool:
    inside_free = any(".".join(path[:depth]) in free for depth in range(1, len(path) + 1))
    return isinstance(node, yaml.MappingNode) and bool(node.value) and not inside_free


def _flatten(node: yaml.Node, path: tuple[str, ...], source: str, free: Collection[str]) -> Iterator[Setting]:
    """One setting per leaf. A dot in a key separates parts, as on the command line."""
    for key_node, child in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{source} line {key_node.start_mark.line + 1}: a key must be a word")
        inner = (*path, *key_node.value.split("."))
        if len(inner) > 20:
            raise ConfigError(f"{source} line {key_node.start_mark.line + 1}: sections are nested without end")
        if _is_section(child, inner, free):
            yield from _flatten(child, inner, source, free)
        else:
            yield _setting(inner, child, source, key_node.start_mark.line + 1)


def _setting(path: tuple[str, ...], node: yaml.Node, source: str, line: int | None = None) -> Setting:
    where = source if line is None or source == COMMAND_LINE else f"{source} line {line}"
    try:
        return Setting(path, _construct(node), _construct(_as_text(node)), where, source)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: the value of {'.'.join(path)} cannot be read: {_reason(error)}") from error


def _compose(text: str, what: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_Reader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{what} is not valid YAML: {_reason(error)}") from error
    return node


def _construct(node: yaml.Node) -> Any:
    loader = _Reader("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _as_text(node: yaml.Node) -> yaml.Node:
    """A copy of the node whose plain words are text."""
    if isinstance(node, yaml.SequenceNode):
        return yaml.SequenceNode(node.tag, [_as_text(item) for item in node.value], node.start_mark)
    plain = isinstance(node, yaml.ScalarNode) and node.style is None
    if plain and node.tag.startswith(_TAG) and node.tag != f"{_TAG}null":
        return yaml.ScalarNode(f"{_TAG}str", node.value, node.start_mark)
    return node


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return str(error)
