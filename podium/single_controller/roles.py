"""The parts a worker can play in a run. What each does is the workers' matter; where each lives is the pools'."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    ActorRollout = "actor_rollout"
    """Trains the policy and samples from it, in one process."""
    ActorRolloutRef = "actor_rollout_ref"
    """The same, with the reference policy beside it."""
    Actor = "actor"
    Rollout = "rollout"
    Critic = "critic"
    RefPolicy = "ref"
    RewardModel = "rm"
