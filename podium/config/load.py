"""From a recipe and `a.b=c` words to a `Config`, and back to a file.

The schema's defaults, then the recipe, then the words, then `resolve`. All mistakes are reported together, each with
its place and the nearest name or the allowed values. Whether settings fit together is for checks.py.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from podium.config.names import ALIASES, describe, free_keys, leaves, optional, sections, unknown_key, wants_text
from podium.config.resolve import RunSettings, derived_folders, resolve
from podium.config.schema import Config
from podium.config.secrets import scrub
from podium.config.sources import ConfigDumper, Setting, read_recipe, read_words
from podium.config.verl_keys import VERLS, advice, value_advice
from podium.errors import ConfigError
from podium.plugins import closest

RECIPES = Path("recipes")
OWN_RECIPES = Path(__file__).parents[1] / "recipes"
"""Those that come with Podium, wherever it is installed."""
NAME_KEY = "trainer.experiment_name"
T = TypeVar("T")


def load_config(recipe: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """The resolved config of a recipe (a path, or a name in `recipes/`) with `a.b=c` words on top."""
    return resolve(load_settings(Config, recipe, overrides))


def load_settings(schema: type[T], recipe: str | Path | None = None, overrides: Sequence[str] = ()) -> T:
    """The same for any dataclass of settings, not resolved."""
    free = free_keys(schema)  # type: ignore[arg-type]  # a class is hashable
    tree = OmegaConf.structured(schema)
    settings: list[Setting] = []
    if recipe is not None:
        path = find_recipe(recipe)
        settings = read_recipe(path, free)
        if NAME_KEY in leaves(schema):  # type: ignore[arg-type]  # as above
            # A recipe that does not name its runs gives them its own name, a $ in it meant as it stands.
            OmegaConf.update(tree, NAME_KEY, _escape(path.stem))
    settings += read_words(overrides, free)
    problems: list[str] = []
    placed: dict[str, Setting] = {}
    values = {setting.key: setting.value for setting in settings}
    for setting in settings:
        key = ALIASES.get(setting.key, setting.key)
        before = placed.get(key)
        if before and before.source == setting.source and before.source != "the command line":
            problems.append(f"{setting.where}: {setting.key} is set twice, before at {before.where}; keep one")
        placed[key] = setting
        problem = _apply(tree, tuple(key.split(".")), setting, schema, values)
        if problem:
            problems.append(f"{setting.where}: {problem}")
    if problems:
        raise ConfigError(_listing(problems))
    return _as_object(tree, schema)


def save_config(config: RunSettings, path: str | Path) -> None:
    """Write a YAML file that `load_config` reads back to an equal config, secrets apart; whole or not at all."""
    config = copy.deepcopy(config)
    settings: Any = config  # a dataclass, which a protocol cannot say
    # Folders that follow from the names stay empty in the file: a copy under another name gets folders of its own.
    for name, folder in derived_folders(config).items():
        if getattr(config.trainer, name) == folder:
            setattr(config.trainer, name, "")
    text = yaml.dump(
        scrub(_escape(asdict(settings))), Dumper=ConfigDumper, sort_keys=False, allow_unicode=True, width=120
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def find_recipe(recipe: str | Path) -> Path:
    """The recipe's file: the path as given, or a name in `recipes/`, here or among Podium's own."""
    given = Path(os.path.expanduser(recipe))  # a ~ of nobody stays as it is
    candidates = [given]
    if given.parent in (Path(), RECIPES):
        names = (given.name, f"{given.name}.yaml")
        candidates += [place / name for place in (RECIPES, OWN_RECIPES) for name in names]
    for path in candidates:
        if path.is_file():
            return path
    known = recipe_names()
    near = closest(given.stem, known)
    hint = f"did you mean {near}?" if near else f"Podium knows {', '.join(known)}"
    place = RECIPES.absolute()
    raise ConfigError(f"no recipe {str(recipe)!r}: neither that file nor one of that name in {place}; {hint}")


def recipe_names() -> list[str]:
    """What `find_recipe` finds by its name."""
    return sorted({path.stem for place in (RECIPES, OWN_RECIPES) for path in place.glob("*.yaml")})


def _apply(
    tree: DictConfig, path: tuple[str, ...], setting: Setting, schema: type, values: dict[str, Any]
) -> str | None:
    """Put one setting into the tree; what is wrong with it, or None. `values`: all settings by key."""
    key, known = ".".join(path), leaves(schema)
    holder = next((free for free in free_keys(schema) if key.startswith(f"{free}.")), None)
    if holder is not None:
        depth = holder.count(".") + 1
        inner: Any = setting.value
        for part in reversed(path[depth:]):
            inner = {part: inner}
        return _merge_free(tree, path[:depth], inner, setting, known)
    if key in free_keys(schema):
        return _merge_free(tree, path, setting.value, setting, known)
    if key in sections(schema):
        if setting.value in (None, {}):
            return None
        names = sorted({name.removeprefix(f"{key}.").split(".")[0] for name in known if name.startswith(f"{key}.")})
        return f"{key} is a section and cannot be {_shown(setting.text)}; set {key}.<one of {', '.join(names)}>"
    if key not in known:
        from_verl = advice(setting.key, values) if schema is Config else None
        return f"unknown key {setting.key!r}; {from_verl}" if from_verl else unknown_key(setting.key, schema)
    annotation = known[key]
    value, fits = _fit(setting, annotation)
    try:
        if fits:
            _parent(tree, path)[path[-1]] = value
            return None
    except OmegaConfBaseException:
        pass
    hint = value_advice(key, values) if schema is Config else ""
    return f"{key} cannot be {_shown(setting.text)}; it must be {describe(annotation)}{hint}"


def _merge_free(
    tree: DictConfig, path: tuple[str, ...], value: Any, setting: Setting, known: dict[str, Any]
) -> str | None:
    """Merge a mapping into a key that holds names of the user's own."""
    parent = _parent(tree, path)
    try:
        if not isinstance(value, dict):
            raise OmegaConfBaseException
        parent[path[-1]] = OmegaConf.merge(parent[path[-1]], value)
    except OmegaConfBaseException:
        return f"{setting.key} cannot be {_shown(setting.text)}; {'.'.join(path)} is {describe(known['.'.join(path)])}"
    return None


def _parent(tree: DictConfig, path: tuple[str, ...]) -> DictConfig:
    for part in path[:-1]:
        tree = tree[part]
    return tree


def _fit(setting: Setting, annotation: Any) -> tuple[Any, bool]:
    """The value in the form its field wants, and whether its kind is right (OmegaConf checks text and choices)."""
    value = setting.text if wants_text(annotation) else setting.value
    base, null = optional(annotation)
    if value is None:
        return None, null
    if get_origin(base) is not list:
        return _fit_item(value, base)
    items = value if isinstance(value, list) else [value]
    fitted = [_fit_item(item, get_args(base)[0]) for item in items]
    return [item for item, _ in fitted], all(fits for _, fits in fitted)


def _fit_item(item: Any, base: Any) -> tuple[Any, bool]:
    if isinstance(item, str) and "${" in item:
        return item, True
    if base is bool:
        return item, isinstance(item, bool)
    if base not in (int, float):
        return item, item is not None
    if isinstance(item, bool) or not isinstance(item, int | float):
        return item, False
    if base is int:
        return (int(item), True) if item == item // 1 else (item, False)  # 1e3 steps are 1000 steps
    try:
        return float(item), True
    except OverflowError:
        return item, False


def _as_object(tree: DictConfig, schema: type[T]) -> T:
    try:
        config = OmegaConf.to_object(tree)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "a setting"
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{key} cannot be resolved: {reason}; write \\${{...}} for a literal ${{...}}") from error
    assert isinstance(config, schema)
    return config


def _listing(problems: list[str]) -> str:
    hint = "podium import-config translates a whole script or file of verl's"
    from_verl = any(VERLS in problem for problem in problems)
    if len(problems) == 1:
        return f"{problems[0]}. {hint}" if from_verl else problems[0]
    lines = [f"{len(problems)} settings cannot be used:", *(f"- {problem}" for problem in problems)]
    return "\n".join([*lines, *([hint] if from_verl else [])])


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _escape(value: Any) -> Any:
    """Text that holds `${` is meant literally by now; the next load must not resolve it."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: f"{match[1] * 2}\\${{", value)
    if isinstance(value, list | tuple):
        return [_escape(item) for item in value]
    if isinstance(value, dict):
        return {key: _escape(item) for key, item in value.items()}
    return value
