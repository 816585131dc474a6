"""The page docs/algorithms.md names what there is, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import podium.algorithms
from podium.algorithms import LOSS_AGG_MODES, SCHEDULES, AdvantageEstimator, get_policy_loss_fn, policy_loss_names
from podium.config.schema import ActorConfig

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
NAMES = [*map(str, AdvantageEstimator), *policy_loss_names(), *LOSS_AGG_MODES, *SCHEDULES]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_names_it(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_every_public_name_is_importable_once() -> None:
    names = podium.algorithms.__all__
    assert len(set(names)) == len(names)
    assert all(hasattr(podium.algorithms, name) for name in names)


def test_the_example_loss_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(from podium\.algorithms.*?)```", PAGE, re.S)
    path = tmp_path / "example_loss.py"
    path.write_text(example)
    x, mask = torch.tensor([[-1.0, -2.0]]), torch.ones(1, 2)
    loss, metrics = get_policy_loss_fn(f"{path}:clipped_above")(x, x, mask, mask, "token-mean", ActorConfig())
    assert float(loss) == -2.0 and metrics["actor/pg_loss"].result() == -1.0
