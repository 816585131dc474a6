"""Policy losses, by name in a registry and under verl's function names, and the value loss."""

from podium.algorithms.losses.common import add_regularizers, clip_range, finish_policy_loss, log_ratio
from podium.algorithms.losses.covariance import (
    compute_policy_loss_clip_cov,
    compute_policy_loss_kl_cov,
    select_clip_cov,
    select_kl_cov,
)
from podium.algorithms.losses.registry import (
    PolicyLossEntry,
    get_policy_loss_fn,
    policy_loss_names,
    register_policy_loss,
)
from podium.algorithms.losses.sequence import compute_policy_loss_geo_mean, compute_policy_loss_gspo
from podium.algorithms.losses.token import (
    compute_policy_loss,
    compute_policy_loss_cispo,
    compute_policy_loss_dppo_kl,
    compute_policy_loss_dppo_tv,
    compute_policy_loss_dro,
    compute_policy_loss_gpg,
    compute_policy_loss_reinforce,
    compute_policy_loss_sapo,
    compute_policy_loss_vanilla,
)
from podium.algorithms.losses.value import compute_value_loss, value_loss_sum

__all__ = [
    "PolicyLossEntry",
    "add_regularizers",
    "clip_range",
    "compute_policy_loss",
    "compute_policy_loss_cispo",
    "compute_policy_loss_clip_cov",
    "compute_policy_loss_dppo_kl",
    "compute_policy_loss_dppo_tv",
    "compute_policy_loss_dro",
    "compute_policy_loss_geo_mean",
    "compute_policy_loss_gpg",
    "compute_policy_loss_gspo",
    "compute_policy_loss_kl_cov",
    "compute_policy_loss_reinforce",
    "compute_policy_loss_sapo",
    "compute_policy_loss_vanilla",
    "compute_value_loss",
    "finish_policy_loss",
    "get_policy_loss_fn",
    "log_ratio",
    "policy_loss_names",
    "register_policy_loss",
    "select_clip_cov",
    "select_kl_cov",
    "value_loss_sum",
]
