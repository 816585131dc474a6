"""The registry of advantage estimators: one way to call them all.

    fn = get_adv_estimator_fn("grpo")
    advantages, returns = fn(token_level_rewards, response_mask, index=uids, config=config.algorithm)

An estimator is a function that takes what it needs by name; its required parameters are its declaration. The trainer
offers everything it has and reads `needs_*` to know what it must have. No estimator is implemented here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from podium.algorithms.groups import Index
from podium.config.schema import AlgorithmConfig
from podium.errors import ConfigError
from podium.plugins import Signature, load_function, nearest

AdvantageFunction = Callable[..., tuple[Tensor, Tensor]]

_MEANING = {
    "values": "the critic's values [B, R]; set critic.enable=true",
    "index": "one group key per row [B]",
    "reward_baselines": "the score of a greedy rollout per row [B]",
    "sum_pi_squared": "Σπ² per token [B, R]",
    "old_log_probs": "the log-probs of the policy that sampled [B, R]",
    "reward_parts": "the reward's parts by name, each [B]; return a dict from the reward function",
}


class AdvantageEstimator(StrEnum):
    """The estimators that come with Podium."""

    GAE = "gae"
    GRPO = "grpo"
    GRPO_PASSK = "grpo_passk"
    RLOO = "rloo"
    OPO = "opo"
    REINFORCE_PLUS_PLUS = "reinforce_plus_plus"
    REINFORCE_PLUS_PLUS_BASELINE = "reinforce_plus_plus_baseline"
    REMAX = "remax"
    GPG = "gpg"
    OPTIMAL_TOKEN_BASELINE = "optimal_token_baseline"
    TIR_OPTIMAL_TOKEN_BASELINE = "tir_optimal_token_baseline"
    GDPO = "gdpo"


class AdvantageEntry:
    """A registered estimator: its function, what it needs, and the one calling convention."""

    def __init__(self, name: str, function: AdvantageFunction, needs: Iterable[str] = ()) -> None:
        self.name, self.function = name, function
        self._signature = Signature(function)
        self.needs = (frozenset(needs) | self._signature.required) & frozenset(_MEANING)
        self.__doc__ = function.__doc__

    @property
    def needs_values(self) -> bool:
        return "values" in self.needs

    @property
    def needs_group(self) -> bool:
        return "index" in self.needs

    @property
    def needs_greedy_baseline(self) -> bool:
        return "reward_baselines" in self.needs

    @property
    def needs_sum_pi_squared(self) -> bool:
        return "sum_pi_squared" in self.needs

    @property
    def needs_old_log_probs(self) -> bool:
        return "old_log_probs" in self.needs

    @property
    def needs_reward_parts(self) -> bool:
        return "reward_parts" in self.needs

    def __call__(
        self,
        token_level_rewards: Tensor,
        response_mask: Tensor,
        *,
        index: Index | None = None,
        values: Tensor | None = None,
        gamma: float = 1.0,
        lam: float = 1.0,
        config: AlgorithmConfig | None = None,
        **columns: Any,
    ) -> tuple[Tensor, Tensor]:
        """Advantages and returns [B, R], both 0 outside the mask. `columns`: whatever else the batch has, by its key.

        Settings of `config` that an estimator takes as parameters (norm_adv_by_std_in_grpo, reward_weights) are handed
        over from it unless given by name; gamma and lam are given here.
        """
        offered = {"index": index, "values": values, **columns}
        offered = {name: value for name, value in offered.items() if value is not None}
        missing = sorted(self.needs - offered.keys())
        if missing:
            raise ConfigError(
                f"advantage estimator {self.name!r} needs {', '.join(f'{name} ({_MEANING[name]})' for name in missing)}"
            )
        if config is not None:
            offered.setdefault("norm_adv_by_std_in_grpo", config.norm_adv_by_std_in_grpo)
            offered.setdefault("reward_weights", config.reward_weights)
        offered |= {"gamma": gamma, "lam": lam, "config": config}
        with torch.no_grad():
            return self.function(
                token_level_rewards=token_level_rewards,
                response_mask=response_mask,
                **self._signature.accepted(offered),
            )

    def __repr__(self) -> str:
        return f"AdvantageEntry({self.name!r}, needs={sorted(self.needs)})"


_ENTRIES: dict[str, AdvantageEntry] = {}


def register_adv_est(name: str, needs: Iterable[str] = ()) -> Callable[[AdvantageFunction], AdvantageFunction]:
    """Register a function (token_level_rewards, response_mask, ...) -> (advantages, returns) under a name.

    What it requires by parameter name is offered by the trainer: index, values, gamma, lam, config,
    norm_adv_by_std_in_grpo, reward_weights, and any tensor of the batch. `needs` adds names that a `**columns` hides.
    """

    def register(function: AdvantageFunction) -> AdvantageFunction:
        known = _ENTRIES.get(name)
        if known is not None and known.function.__qualname__ != function.__qualname__:
            raise ConfigError(
                f"advantage estimator {name!r} is already {known.function.__qualname__}; choose another name"
            )
        _ENTRIES[str(name)] = AdvantageEntry(str(name), function, needs)
        return function

    return register


def get_adv_estimator_fn(name_or_enum: str | AdvantageEstimator) -> AdvantageEntry:
    """The estimator of a registered name, of `module:function`, or of `path/file.py:function`."""
    name = str(name_or_enum)
    if name in _ENTRIES:
        return _ENTRIES[name]
    if ":" not in name:
        raise ConfigError(
            f"algorithm.adv_estimator {name!r} is unknown{nearest(name, _ENTRIES)}; or module:function of your own"
        )
    function = load_function(name, "algorithm.adv_estimator")
    registered = [entry for entry in _ENTRIES.values() if entry.function is function]
    return registered[0] if registered else AdvantageEntry(name, function)
