"""What is set otherwise than in the run that wrote a checkpoint.

A resumed run takes its weights and its place in the data from the checkpoint and everything else from its own settings.
That is meant when a run goes on for longer, and a mistake when another experiment was given the same folder; which of
the two, the user knows once the differences are listed. Settings that decide speed, memory, logging or the place of
files change no result and are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from podium.config import load_config
from podium.config.secrets import scrub
from podium.errors import ConfigError

MAX_SHOWN = 60
COMPARED = (
    *("data.", "algorithm.", "actor_rollout_ref.model.", "actor_rollout_ref.actor.", "actor_rollout_ref.ref.path"),
    *(f"actor_rollout_ref.rollout.{name}" for name in ("n", "temperature", "top_", "min_p", "stop", "ignore_eos")),
    *("critic.", "reward.custom", "reward.functions", "reward.kwargs", "reward_model."),
    *("do_search", "max_turns", "retriever.topk", "retriever.corpus"),
    *("agent.environment", "agent.kwargs", "agent.tools", "agent.mcp_servers"),
    *("trainer.seed", "trainer.critic_warmup", "trainer.max_staleness"),
)
"""How the keys begin that decide what a step learns."""
SPEED = (
    *("fsdp", "micro_batch", "gradient_checkpointing", "nnodes", "n_gpus", "rollout.name", "data.val_", "cache_dir"),
    "max_bad_rows",
)
"""What keys hold that decide only what it costs, or what is looked at."""


def changed_settings(
    checkpoint: Path, config: Any, load: Callable[[Path], Any] = load_config, compared: tuple[str, ...] = COMPARED
) -> dict[str, str]:
    """`old -> new` by key, of the settings that decide what is learned; empty when nothing differs.

    `load` reads the settings of the same kind from a file; `compared` is how their keys begin that count.
    """
    file = checkpoint.resolve().parent.parent / "config.yaml"
    if not file.is_file():
        return {}
    try:
        before = dict(_compared(load(file), compared))
    except ConfigError as error:
        return {str(file): f"cannot be compared: {str(error).splitlines()[0]}"}
    now = dict(_compared(config, compared))
    keys = [key for key in {**before, **now} if key in before and key in now and before[key] != now[key]]
    return {key: f"{_shown(before[key])} -> {_shown(now[key])}" for key in keys}


def _compared(config: Any, compared: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    parts = {part: getattr(config, part, None) for part in ("critic", "reward_model")}
    idle = tuple(f"{name}." for name, part in parts.items() if part is not None and not part.enable)
    for key, value in _leaves(config, ""):
        counts = key.startswith(compared) and not any(word in key for word in SPEED)
        if counts and (not key.startswith(idle) or key.endswith(".enable")):
            yield key, value


def _leaves(section: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for item in fields(section):
        value = getattr(section, item.name)
        if is_dataclass(value):
            yield from _leaves(value, f"{prefix}{item.name}.")
        else:
            yield f"{prefix}{item.name}", scrub(value, item.name)


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
