"""The recipe of docs/rlhf.md from end to end, with a third of its PPO steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from podium.cli.main import main
from podium.tracking import read_metrics

RECIPES = Path(__file__).parents[2] / "recipes" / "rlhf"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ppo_against_the_reward_model_pleases_it_and_the_rule(tmp_path: Path) -> None:
    quiet = "trainer.logger=[]"
    sft = f"{tmp_path}/sft/checkpoints/global_step_16/hf"
    judge = f"{tmp_path}/reward/checkpoints/global_step_200/hf"
    policy = f"actor_rollout_ref.model.path={sft}"
    pairs = f"data.train_files=['{tmp_path}/pairs.parquet','task:addition?rows=8192']"
    critic = [f"critic.model.path={judge}", f"reward_model.model.path={judge}", "trainer.total_training_steps=10"]
    commands = [
        ["sft", f"{RECIPES}/sft.yaml", f"trainer.default_local_dir={tmp_path}/sft", quiet],
        ["train", f"{RECIPES}/sample.yaml", f"trainer.default_local_dir={tmp_path}/samples", policy, quiet],
        ["data", "pairs", f"{tmp_path}/samples/validation", "--out", f"{tmp_path}/pairs.parquet"],
        [
            "train-reward",
            f"{RECIPES}/reward.yaml",
            f"trainer.default_local_dir={tmp_path}/reward",
            f"model.path={sft}",
            pairs,
            quiet,
        ],
        ["train", f"{RECIPES}/ppo.yaml", f"trainer.default_local_dir={tmp_path}/ppo", policy, *critic, quiet],
    ]
    for command in commands:
        assert main(command) == 0, command
    held_out = [record for record in read_metrics(tmp_path / "ppo") if "val/test_score/addition" in record]
    before, after = held_out[0], held_out[-1]
    judged, right = "val-aux/addition/rm/mean@1", "val/test_score/addition"
    assert after[judged] > before[judged] + 0.2, "the reward model is pleased"
    assert after[right] > before[right] + 0.04, "and rightly so"
