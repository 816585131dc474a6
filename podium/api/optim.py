"""From the optimizer's and the schedule's arguments to the settings of `optim`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from podium.api.arguments import TrainingArguments
from podium.errors import ConfigError
from podium.plugins import nearest

OPTIMIZERS = {
    "adamw_torch": "AdamW",
    "adamw_torch_fused": "AdamW",
    "adamw_torch_8bit": "AdamW8bit",
    "adamw_torch_4bit": "AdamW4bit",
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "rmsprop": "RMSprop",
}
"""transformers' names, and the class of torch.optim (or of torchao) that is meant. Its Adafactor is not torch's."""
SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
}
USUAL_EPSILON = 1e-8


def one_of(name: str, value: str, allowed: Mapping[str, Any] | tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is not known{nearest(str(value), allowed)}")
    return value


def word_of(value: Any) -> str:
    """The word itself, or that of transformers' enum."""
    return str(getattr(value, "value", None) or value)


def read_dict(name: str, value: Any) -> dict[str, Any]:
    """A dict, also as the JSON that a command line has."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigError(f"{name}={value!r} is no JSON: {error}") from None
    if not isinstance(value, Mapping | None):
        raise ConfigError(f"{name} is a {type(value).__name__}; give a dict")
    return dict(value or {})


def optim_settings(args: TrainingArguments, total_steps: int, updates: int) -> dict[str, Any]:
    """The keys of an `optim` section. `updates`: optimizer steps per training step."""
    optimizer = one_of("optim", word_of(args.optim), OPTIMIZERS)
    schedule = one_of("lr_scheduler_type", word_of(args.lr_scheduler_type), SCHEDULES)
    warmup = args.warmup_steps if args.warmup_ratio is None else args.warmup_ratio
    warmup_steps = math.ceil(warmup * total_steps) if warmup < 1 else int(warmup)
    settings = {
        "name": OPTIMIZERS[optimizer],
        "lr": args.learning_rate,
        "weight_decay": args.weight_decay,
        "lr_decay": SCHEDULES[schedule],
        "lr_warmup_steps": warmup_steps * updates if schedule != "constant" else 0,
        "min_lr_ratio": _lowest(schedule, args),
    }
    if optimizer.startswith("adamw"):  # the others have no such numbers, nor do they in transformers
        settings["betas"] = [args.adam_beta1, args.adam_beta2]
        settings["kwargs"] = {} if args.adam_epsilon == USUAL_EPSILON else {"eps": args.adam_epsilon}
    return settings


def _lowest(schedule: str, args: TrainingArguments) -> float:
    """The share of the peak that `cosine_with_min_lr` ends at."""
    given = read_dict("lr_scheduler_kwargs", args.lr_scheduler_kwargs)
    known = ("min_lr", "min_lr_rate") if schedule == "cosine_with_min_lr" else ()
    for name in given:
        if name not in known:
            raise ConfigError(f"lr_scheduler_kwargs: {schedule} takes no {name!r}{nearest(name, known)}")
    if not known:
        return 0.0
    if len(given) != 1:
        raise ConfigError("lr_scheduler_type='cosine_with_min_lr' needs lr_scheduler_kwargs with min_lr or min_lr_rate")
    return float(given["min_lr_rate"]) if "min_lr_rate" in given else float(given["min_lr"]) / args.learning_rate
