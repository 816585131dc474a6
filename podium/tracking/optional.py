"""What the trackers share: is the package there, what of the config is sent, how samples become a table."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from podium.config.schema import Config
from podium.config.secrets import scrub
from podium.errors import ConfigError
from podium.tracking.runlog import Sample

COLUMNS = ("step", "input", "output", "ground truth", "score", "data source")


def require_package(package: str, tracker: str) -> None:
    """A tracker whose package is missing is an error at the start, not a warning an hour later."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"trainer.logger: {tracker} needs the package {package}; install it with: pip install 'podium[{tracker}]'"
        )


def public_config(config: Config) -> dict[str, Any]:
    """The settings without secrets."""
    return dict(scrub(asdict(config)))


def table_rows(step: int, samples: Sequence[Sample]) -> list[list[Any]]:
    return [
        [step, sample.input, sample.output, str(sample.gts), sample.score, sample.data_source] for sample in samples
    ]
