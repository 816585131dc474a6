"""Registered names and the user's own functions: `name`, `module:function`, `path/file.py:function`.

Shared by advantages, losses and rewards. It finds and calls functions; it knows nothing of what they compute.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from podium.errors import ConfigError


def closest(name: str, known: Iterable[str], cutoff: float = 0.65) -> str | None:
    """The known name that a misspelt one most likely meant, whatever its case; None when none is like it.

    Like it are names spelt nearly the same and, after those, names with the same words and some more or less, as
    `score` and `compute_score`.
    """
    by_lower = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    if not close:
        related = [word for word in by_lower if _is_part(word, name.lower())]
        close = difflib.get_close_matches(name.lower(), related, n=1, cutoff=0.0)
    return by_lower[close[0]] if close else None


def _is_part(one: str, other: str) -> bool:
    """Whether the words of one name are all among the other's."""
    words, others = set(re.split("[_-]", one)), set(re.split("[_-]", other))
    return words <= others or others <= words


def nearest(name: str, allowed: Iterable[str]) -> str:
    """The tail of an error message: the nearest allowed name, then all of them."""
    names = sorted(allowed)
    close = closest(name, names)
    hint = f"; did you mean {close!r}?" if close else "."
    return f"{hint} Allowed: {', '.join(names)}"


def load_function(reference: str, what: str) -> Callable[..., Any]:
    """The function that `module:function` or `path/file.py:function` names."""
    source, _, attribute = reference.rpartition(":")
    module = (
        _load_file(Path(source), what, reference) if source.endswith(".py") else _load_module(source, what, reference)
    )
    function = getattr(module, attribute, None)
    if not callable(function):
        public = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ConfigError(f"{what} {reference!r}: {source} has no function {attribute!r}{nearest(attribute, public)}")
    return function  # type: ignore[no-any-return]


def _load_module(source: str, what: str, reference: str) -> ModuleType:
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name is None or not (source == error.name or source.startswith(error.name + ".")):
            raise  # the module exists, something that it imports does not
    beside = Path(*source.split(".")).with_suffix(".py")
    if beside.is_file():
        return _load_file(beside, what, reference)
    raise ConfigError(
        f"{what} {reference!r}: no module {source!r} is installed, nor is there a file {beside} in {Path.cwd()}. "
        "Write module:function or path/file.py:function"
    )


def _load_file(path: Path, what: str, reference: str) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"{what} {reference!r}: there is no file {path}")
    name = f"podium_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class Signature:
    """What a function takes by keyword, asked once."""

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = inspect.signature(function).parameters.values()
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.names = frozenset(p.name for p in named)
        self.required = frozenset(p.name for p in named if p.default is p.empty)

    def accepted(self, offered: Mapping[str, Any]) -> dict[str, Any]:
        """Of what is offered, what the function takes."""
        return {name: value for name, value in offered.items() if self.takes_any or name in self.names}
