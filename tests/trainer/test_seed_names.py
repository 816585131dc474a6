"""The trainer as programs written for verl make it, and what they find on it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from podium.config.schema import Config
from podium.models.load import load_tokenizer
from podium.protocol import DataProto
from podium.rewards.manager import RewardManager
from podium.single_controller import LocalWorkerGroup, ResourcePoolManager, Role
from podium.trainer.ray_trainer import RayPPOTrainer, apply_kl_penalty, compute_advantage
from podium.trainer.seed_names import compute_reward
from podium.workers.actor_rollout_ref import ActorRolloutRefWorker
from podium.workers.reward_model import RewardModelWorker

ConfigMaker = Callable[..., Config]


@pytest.fixture
def tokenizer() -> Any:
    return load_tokenizer("builtin:tiny")


def score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    return float(solution_str.strip() == ground_truth)


def roles_and_pools(config: Config, role: Role = Role.ActorRollout) -> dict[str, Any]:
    pools = ResourcePoolManager(resource_pool_spec={"global_pool": [1]}, mapping={role: "global_pool"})
    return {"role_worker_mapping": {role: ActorRolloutRefWorker}, "resource_pool_manager": pools}


def test_the_constructor_has_verls_arguments_in_verls_order_and_all_but_the_configuration_can_be_left_out() -> None:
    names = (
        "config tokenizer role_worker_mapping resource_pool_manager ray_worker_group_cls processor reward_fn "
        "val_reward_fn train_dataset val_dataset collate_fn train_sampler device_name"
    )
    parameters = list(inspect.signature(RayPPOTrainer).parameters.values())
    assert [parameter.name for parameter in parameters] == names.split()
    assert all(parameter.default is None for parameter in parameters[1:])
    with pytest.raises(TypeError, match="config"):
        RayPPOTrainer()
    with pytest.raises(TypeError, match="no_such"):
        RayPPOTrainer(Config(), no_such=1)


def test_a_trainer_with_a_reward_function_and_the_data_of_the_configuration_trains(
    small_config: ConfigMaker, tokenizer: Any
) -> None:
    """The second seed's call: keywords, no worker group class, no datasets."""
    config = small_config()
    trainer = RayPPOTrainer(config=config, tokenizer=tokenizer, reward_fn=score, **roles_and_pools(config))
    try:
        assert trainer.ray_worker_group_cls is LocalWorkerGroup
        trainer.init_workers()
        trainer.fit()
        assert trainer.global_steps == 2
        assert trainer.ref_policy_wg is None and trainer.rm_wg is None and not trainer.use_rm
    finally:
        trainer.shutdown()


def test_a_trainer_made_with_all_arguments_in_order_and_none_for_what_is_not_needed(
    small_config: ConfigMaker, tokenizer: Any
) -> None:
    """The first seed's signature, its defaults written out."""
    config = small_config()
    parts = roles_and_pools(config)
    trainer = RayPPOTrainer(
        config, tokenizer, parts["role_worker_mapping"], parts["resource_pool_manager"], LocalWorkerGroup,
        None, RewardManager(tokenizer, score), None, None, None, None, None, None,
    )  # fmt: skip
    assert trainer.reward_fn is trainer.val_reward_fn
    trainer.shutdown()


def test_a_trainer_is_made_from_a_configuration_alone_and_has_verls_worker_groups(small_config: ConfigMaker) -> None:
    """The fourth seed's call. The reference's log-probs come from `ref_policy_wg`, not the actor's under its name."""
    config = small_config(
        "algorithm.use_kl_in_reward=true", "reward_model.enable=true", "reward_model.model.path=builtin:tiny",
        "reward_model.weight=0.0",
    )  # fmt: skip
    trainer = RayPPOTrainer(config)
    try:
        assert trainer.role_worker_mapping[Role.RewardModel] is RewardModelWorker
        assert trainer.use_rm and trainer.use_reference_policy
        asked: list[str] = []

        class Workers:
            world_size = 1

            def compute_ref_log_prob(self, batch: str) -> str:
                asked.append(batch)
                return "of the reference"

        trainer.actor_rollout_wg, trainer.reward_model_wg = Workers(), "judges"
        assert trainer.rm_wg == "judges"
        assert trainer.ref_policy_wg is not None
        assert trainer.ref_policy_wg.compute_log_prob("batch") == "of the reference"
        assert asked == ["batch"]
    finally:
        trainer.shutdown()


def test_the_dataloaders_give_the_batches_that_the_run_draws_and_looking_moves_nothing(
    small_config: ConfigMaker,
) -> None:
    trainer = RayPPOTrainer(small_config("data.val_batch_size=6"))
    try:
        seen = [list(batch["uid"]) for batch in trainer.train_dataloader]
        assert len(seen) == len(trainer.train_dataloader) == 8
        drawn = trainer._draw_prompts()
        assert list(drawn.non_tensor_batch["uid"]) == seen[0]
        assert [list(batch["uid"]) for batch in trainer.train_dataloader] == seen[1:], "the rest of the epoch"
        assert trainer.val_dataloader is not None
        sizes = [len(DataProto.from_single_dict(batch)) for batch in trainer.val_dataloader]
        assert sizes == [6, 6, 4] and len(trainer.val_dataloader) == 3
    finally:
        trainer.shutdown()


def test_algorithm_functions_are_imported_from_the_trainers_file_as_in_verl() -> None:
    from podium.trainer import advantage

    assert apply_kl_penalty is advantage.apply_kl_penalty
    assert compute_advantage is advantage.compute_advantage


def test_compute_reward_puts_the_score_on_the_last_token_and_says_what_is_unscored(tokenizer: Any) -> None:
    def half(data_source: str, solution_str: str, ground_truth: str, extra_info: Any) -> dict[str, float]:
        if ground_truth == "bad":
            raise ValueError("no")
        return {"score": 0.5, "part": 2.0}

    text = torch.tensor([tokenizer("1")["input_ids"][:1] * 3] * 2)
    columns = {"data_source": ["x", "x"], "ground_truth": ["good", "bad"], "extra_info": [{}, {}]}
    columns |= {"raw_prompt": [[{"role": "user", "content": "?"}]] * 2, "reward_model": [{}, {}], "uid": ["a", "b"]}
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    batch = DataProto.from_dict(
        tensors={"responses": text, "response_mask": mask, "prompts": text, "attention_mask": torch.ones(2, 6)},
        non_tensors={name: np.array(values, dtype=object) for name, values in columns.items()},
    )
    rewards, extra = compute_reward(batch, RewardManager(tokenizer, half, max_failure_rate=1.0))
    assert rewards[0].tolist() == [0.0, 0.5, 0.0]
    assert rewards[1, :2].tolist() == [0.0, 0.0] and bool(rewards[1, 2].isnan())
    assert extra["part"][0] == 2.0
