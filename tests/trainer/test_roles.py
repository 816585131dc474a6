"""A role mapping as verl's users write it gives the roles that are needed, or an error that names the one it lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from podium.config.schema import Config
from podium.errors import ConfigError
from podium.single_controller import LocalWorkerGroup, ResourcePoolManager, Role
from podium.tracking import read_metrics
from podium.trainer.ray_trainer import RayPPOTrainer
from podium.workers.actor_rollout_ref import ActorRolloutRefWorker
from podium.workers.critic import CriticWorker
from podium.workers.reward_model import RewardModelWorker

ConfigMaker = Callable[..., Config]
WITH_KL = "algorithm.use_kl_in_reward=true"
REFERENCE = {Role.ActorRollout: ActorRolloutRefWorker, Role.RefPolicy: ActorRolloutRefWorker}


def make(config: Config, mapping: dict[Role, Any], pools: dict[Role, str] | None = None) -> RayPPOTrainer:
    places = pools or dict.fromkeys(mapping, "global_pool")
    manager = ResourcePoolManager({name: [1] for name in set(places.values())}, places)
    return RayPPOTrainer(
        config=config, role_worker_mapping=mapping, resource_pool_manager=manager, ray_worker_group_cls=LocalWorkerGroup
    )


def test_a_role_for_the_reference_beside_the_actor_turns_the_reference_on(small_config: ConfigMaker) -> None:
    config = small_config(WITH_KL, "trainer.total_training_steps=1")
    trainer = make(config, REFERENCE)
    try:
        trainer.init_workers()
        trainer.fit()
    finally:
        trainer.shutdown()
    (step,) = [line for line in read_metrics(config.trainer.default_local_dir) if "actor/reward_kl_penalty" in line]
    assert step["actor/reward_kl_penalty"] == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize(
    ("word", "user"),
    [
        (WITH_KL, "algorithm.use_kl_in_reward"),
        ("actor_rollout_ref.actor.use_kl_loss=true", "actor.use_kl_loss"),
        ("algorithm.ref_quality_score.enable=true", "ref_quality_score"),
    ],
)
def test_a_mapping_without_the_reference_that_is_needed(word: str, user: str, small_config: ConfigMaker) -> None:
    with pytest.raises(ConfigError, match="no reference") as caught:
        make(small_config(word), {Role.ActorRollout: ActorRolloutRefWorker})
    assert user in str(caught.value) and "Role.RefPolicy" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "mapping", "pools", "says"),
    [
        ([], {Role.Critic: CriticWorker}, None, "it needs Role.ActorRollout"),
        (["algorithm.adv_estimator=gae"], {Role.ActorRollout: ActorRolloutRefWorker}, None, "add Role.Critic"),
        ([], REFERENCE | {Role.RewardModel: RewardModelWorker}, None, "reward_model.enable=true"),
        ([], REFERENCE | {Role.RefPolicy: CriticWorker}, None, "Role.RefPolicy is CriticWorker"),
        ([], REFERENCE, {Role.ActorRollout: "a", Role.RefPolicy: "b"}, "mapped to pool 'b'"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_starts(
    words: list[str], mapping: dict[Role, Any], pools: dict[Role, str] | None, says: str, small_config: ConfigMaker
) -> None:
    with pytest.raises(ConfigError, match=says):
        make(small_config(*words), mapping, pools)
