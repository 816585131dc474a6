"""The names of all settings, read off the schema: which exist, what each may hold, and which one a misspelt word meant.

`schema` is `Config` unless a command has settings of its own. Nothing here reads a file or changes a config.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from podium.config.schema import Config

ALIASES = {
    "trainer.val_freq": "trainer.test_freq",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": (
        "actor_rollout_ref.actor.fsdp.ulysses_sequence_parallel_size"
    ),
    "critic.ulysses_sequence_parallel_size": "critic.fsdp.ulysses_sequence_parallel_size",
}
"""Second names for a key; a config only ever holds the first."""

_OTHER_WORDS = {
    "learning_rate": "lr",
    "batch_size": "train_batch_size",
    "max_steps": "total_training_steps",
    "num_epochs": "total_epochs",
    "num_train_epochs": "total_epochs",
    "num_generations": "n",
    "max_new_tokens": "max_response_length",
    "max_completion_length": "max_response_length",
    "model": "path",
    "model_name_or_path": "path",
}
"""What other trainers call it; only used to guess what a word meant."""
_LIKE_ENOUGH = 0.7


@cache
def leaves(schema: type = Config) -> dict[str, Any]:
    """Every dotted key with its annotation, in the schema's order."""
    return dict(_walk(schema, ""))


@cache
def free_keys(schema: type = Config) -> frozenset[str]:
    """Keys whose value is a mapping with names of the user's own."""
    return frozenset(key for key, annotation in leaves(schema).items() if get_origin(annotation) is dict)


@cache
def sections(schema: type = Config) -> frozenset[str]:
    """Every dotted prefix of a key."""
    parts = (key.split(".") for key in leaves(schema))
    return frozenset(".".join(key[:depth]) for key in parts for depth in range(1, len(key)))


def _walk(section: type, prefix: str) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(section)
    for item in fields(section):
        annotation, key = hints[item.name], f"{prefix}{item.name}"
        if is_dataclass(annotation) and isinstance(annotation, type):
            yield from _walk(annotation, f"{key}.")
        else:
            yield key, annotation


def optional(annotation: Any) -> tuple[Any, bool]:
    """The annotation without `None`, and whether it had it."""
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [part for part in get_args(annotation) if part is not type(None)]
        assert len(rest) == 1, f"a setting has one type, or one type and null: {annotation}"
        return rest[0], True
    return annotation, False


def wants_text(annotation: Any) -> bool:
    """Whether plain YAML words are text here, whatever they look like."""
    base, _ = optional(annotation)
    if get_origin(base) is list:
        return wants_text(get_args(base)[0])
    return base is str or get_origin(base) is Literal


def describe(annotation: Any) -> str:
    """What a setting of this type may hold, in words."""
    base, null = optional(annotation)
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if get_origin(base) is Literal:
        text = "one of " + ", ".join(map(str, get_args(base)))
    elif get_origin(base) is list:
        text = f"a list, each item {describe(get_args(base)[0])}"
    elif get_origin(base) is dict:
        text = f"a mapping, each value {describe(get_args(base)[1])}"
    else:
        text = words.get(base, "anything")
    return f"{text}, or null" if null else text


def unknown_key(key: str, schema: type = Config) -> str:
    """What to say about a key that does not exist."""
    near = nearest(key, schema=schema)
    if near:
        return f"unknown key {key!r}; did you mean {' or '.join(near)}?"
    parts = key.split(".")
    section = next((s for s in (".".join(parts[:n]) for n in range(len(parts), 0, -1)) if s in sections(schema)), "")
    inside = sorted(
        {k.removeprefix(f"{section}.").split(".")[0] for k in leaves(schema) if k.startswith(f"{section}.")}
    )
    names = inside or sorted({k.split(".")[0] for k in leaves(schema)})
    return f"unknown key {key!r}; {section or 'the config'} has {', '.join(names)}"


def nearest(key: str, limit: int = 3, schema: type = Config) -> list[str]:
    """The known keys a word may have meant, the likeliest first. A missing prefix costs little."""
    parts = key.lower().strip("+-").replace("-", "_").split(".")
    parts[-1] = _OTHER_WORDS.get(parts[-1], parts[-1])
    scored = [(_likeness(parts, name), name) for name in [*leaves(schema), *ALIASES]]
    best = max(score for score, _ in scored)
    if best < _LIKE_ENOUGH:
        return []
    near = [(score, name) for score, name in scored if score >= max(_LIKE_ENOUGH, best - 0.05)]
    near.sort(key=lambda pair: -pair[0])  # stable: equal scores stay in the schema's order
    return [name for _, name in near[:limit]]


def _likeness(given: list[str], name: str) -> float:
    """Mostly the last part, which is what people remember; the rest decides between equals."""
    known = name.split(".")
    remaining = iter(known)
    if given[-1] == known[-1] and all(part in remaining for part in given):
        return 1.0
    last = _ratio(given[-1], known[-1])
    if set(given[-1].split("_")) <= set(known[-1].split("_")):
        last = max(last, 0.85)
    if len(given) == 1:
        return last
    return 0.75 * last + 0.25 * _ratio(".".join(given[:-1]), ".".join(known[:-1]))


def _ratio(first: str, second: str) -> float:
    return difflib.SequenceMatcher(None, first, second).ratio()
