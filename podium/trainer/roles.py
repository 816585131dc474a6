"""Which roles a trainer runs, from the mapping it was given: each role that the configuration needs must be there.

The reference lives in the actor's workers. A mapping says so with Role.ActorRolloutRef, or in verl's older way with
Role.RefPolicy beside Role.ActorRollout. Nothing is started here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from podium.config.schema import Config
from podium.errors import ConfigError
from podium.single_controller import ResourcePoolManager, Role
from podium.trainer.requirements import needs_reference_policy


@dataclass(frozen=True)
class ActorRole:
    """The workers that train the policy and sample from it."""

    worker: type
    pool_role: Role
    """The role under which the pools know them."""
    has_reference: bool

    @property
    def role(self) -> Role:
        """What the workers are told that they are."""
        return Role.ActorRolloutRef if self.has_reference else Role.ActorRollout


def find_actor(config: Config, mapping: Mapping[Role, type], pools: ResourcePoolManager) -> ActorRole:
    """The actor's role in the mapping; a ConfigError where the mapping lacks a role or has one that would be idle."""
    pool_role = Role.ActorRolloutRef if Role.ActorRolloutRef in mapping else Role.ActorRollout
    if pool_role not in mapping:
        raise ConfigError(f"role_worker_mapping has {_names(mapping)}; it needs Role.ActorRollout or ActorRolloutRef")
    homes = [role for role in (pool_role, Role.ActorRolloutRef, Role.ActorRollout) if role in pools.mapping]
    has_reference = Role.ActorRolloutRef in mapping or Role.RefPolicy in mapping
    actor = ActorRole(mapping[pool_role], homes[0] if homes else pool_role, has_reference)
    if needs_reference_policy(config) and not actor.has_reference:
        raise ConfigError(
            f"role_worker_mapping has {_names(mapping)} and no reference, which {_reference_users(config)} needs; add "
            "Role.RefPolicy, or use Role.ActorRolloutRef in place of Role.ActorRollout"
        )
    if Role.RefPolicy in mapping:
        _check_reference(actor, mapping, pools)
    needed = {Role.Critic: bool(config.critic.enable), Role.RewardModel: config.reward_model.enable}
    for role, on in needed.items():
        key = "critic.enable" if role is Role.Critic else "reward_model.enable"
        if on and role not in mapping:
            raise ConfigError(
                f"{key} is on and role_worker_mapping has only {_names(mapping)}; add Role.{role.name} to it, or set "
                f"{key}=false"
            )
    if Role.RewardModel in mapping and not config.reward_model.enable:
        raise ConfigError(
            "role_worker_mapping has Role.RewardModel and reward_model.enable is false, so that it would score "
            "nothing; set reward_model.enable=true, or leave the role out"
        )
    return actor


def roles_together(config: Config, mapping: Mapping[Role, type], actor: ActorRole) -> dict[str, tuple[Role, type]]:
    """By the name of their group, the roles that share the actor's processes."""
    together = {"actor_rollout": (actor.role, actor.worker)}
    if config.critic.enable:
        together["critic"] = (Role.Critic, mapping[Role.Critic])
    if config.reward_model.enable and not config.reward_model.nnodes:
        together["reward_model"] = (Role.RewardModel, mapping[Role.RewardModel])
    return together


def _check_reference(actor: ActorRole, mapping: Mapping[Role, type], pools: ResourcePoolManager) -> None:
    given = mapping[Role.RefPolicy]
    if given is not actor.worker and _plain(given) is not _plain(actor.worker):
        raise ConfigError(
            f"Role.RefPolicy is {_plain(given).__name__}, but the reference lives in the actor's workers; give both "
            f"roles {_plain(actor.worker).__name__}"
        )
    home, theirs = pools.mapping.get(actor.pool_role), pools.mapping.get(Role.RefPolicy)
    if theirs not in (None, home):
        raise ConfigError(
            f"Role.RefPolicy is mapped to pool {theirs!r} and {actor.pool_role.name} to {home!r}, but the reference "
            f"lives in the actor's workers; map both to {home!r}"
        )


def _plain(worker: type) -> type:
    """`ray.remote(SomeWorker)` is taken as SomeWorker."""
    metadata = getattr(worker, "__ray_metadata__", None)
    plain: type = worker if metadata is None else metadata.modified_class
    return plain


def _names(mapping: Mapping[Role, type]) -> str:
    return ", ".join(f"Role.{Role(role).name}" for role in mapping) or "no role"


def _reference_users(config: Config) -> str:
    algorithm = config.algorithm
    users = {
        "algorithm.use_kl_in_reward": algorithm.use_kl_in_reward,
        "actor_rollout_ref.actor.use_kl_loss": config.actor_rollout_ref.actor.use_kl_loss,
        "algorithm.ref_quality_score": algorithm.ref_quality_score.enable,
        "algorithm.repr_align": algorithm.repr_align.enable,
    }
    return ", ".join(key for key, on in users.items() if on)
