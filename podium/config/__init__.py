"""Settings: what can be set (schema), how it is read (load), what must hold (checks), what it amounts to (plan)."""

from __future__ import annotations

from podium.config.checks import check_config
from podium.config.load import find_recipe, load_config, save_config
from podium.config.notes import config_notes
from podium.config.plan import Plan, make_plan
from podium.config.resolve import resolve
from podium.config.schema import Config

__all__ = [
    "Config",
    "Plan",
    "check_config",
    "config_notes",
    "find_recipe",
    "load_config",
    "make_plan",
    "resolve",
    "save_config",
]
