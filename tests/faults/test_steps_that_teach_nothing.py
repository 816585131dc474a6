"""Responses without a token and steps without a signal: counted, harmless, and in the end a reason to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_driver import TINY

from podium.config import load_config
from podium.engines.rollout.base import Completion
from podium.errors import TrainingError
from podium.tracking import read_metrics
from podium.trainer.main_ppo import run_ppo
from podium.workers.rollout import Rollout

Train = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path) -> Train:
    def train(*words: str) -> list[dict[str, Any]]:
        folder = f"trainer.default_local_dir={tmp_path / 'run'}"
        assert run_ppo(load_config(None, [*TINY, "trainer.save_freq=0", folder, *words])) == 0
        return read_metrics(tmp_path / "run")

    return train


@pytest.mark.parametrize("share", ["some", "all"])
@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_responses_without_a_token_are_masked_out_and_counted(
    run: Train, monkeypatch: pytest.MonkeyPatch, share: str, estimator: str
) -> None:
    to_columns = Rollout._to_columns

    def emptied(self: Rollout, prompts: Any, mask: Any, completions: list[Completion]) -> Any:
        nothing: dict[str, Any] = {"token_ids": [], "log_probs": []}
        chosen = [replace(c, **nothing) if share == "all" or i % 3 == 0 else c for i, c in enumerate(completions)]
        return to_columns(self, prompts, mask, chosen)

    monkeypatch.setattr(Rollout, "_to_columns", emptied)
    words = ["trainer.total_training_steps=2", "trainer.test_freq=1", f"algorithm.adv_estimator={estimator}"]
    if share == "all":
        with pytest.raises(TrainingError, match="none of the 8 responses"):
            run(*words)
        return
    assert [step["response/aborted_ratio"] for step in run(*words)] == [3 / 8, 3 / 8]


def test_a_run_whose_rewards_never_differ_stops_and_says_so(run: Train, tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 0.3\n")
    words = [f"reward.custom_reward_function={file}:compute_score", "trainer.total_training_steps=5"]
    with pytest.raises(TrainingError, match="in 3 steps in a row all samples of every prompt got the same reward"):
        run(*words, "trainer.max_flat_steps=3")
    steps = read_metrics(tmp_path / "run")
    assert [step["critic/zero_std_groups"] for step in steps] == [4, 4, 4]
