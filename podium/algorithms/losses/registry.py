"""The registry of policy losses: one way to call them all.

    loss = get_policy_loss_fn(config.policy_loss.loss_mode)
    mode = loss.agg_mode(config.loss_agg_mode)
    loss_sum, metrics = loss(old_log_prob, log_prob, advantages, response_mask, mode, config)

A loss returns a sum over its tokens or sequences; whoever has all parts of the optimizer step divides once, by the sum
of `agg_count(response_mask, mode, l_max)`. No loss is implemented here.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from podium.config.schema import ActorConfig, LossAggMode
from podium.errors import ConfigError
from podium.metric import Metrics
from podium.plugins import Signature, load_function, nearest

PolicyLossFunction = Callable[..., tuple[Tensor, Metrics]]
SelectionFunction = Callable[..., Tensor]


class PolicyLossEntry:
    """A registered loss: its function, its fixed aggregation if it has one, and how it selects tokens if it does."""

    def __init__(
        self,
        name: str,
        function: PolicyLossFunction,
        prepare: SelectionFunction | None = None,
        fixed_agg_mode: LossAggMode | None = None,
        proportional: bool = False,
    ) -> None:
        self.name, self.function = name, function
        self.proportional = proportional
        """A row whose advantages are all 0 has neither loss nor gradient, so that it may be left out of the update."""
        self.fixed_agg_mode = fixed_agg_mode
        self._prepare = prepare
        self._signature = Signature(function)
        self.__doc__ = function.__doc__

    @property
    def needs_selection(self) -> bool:
        """Whether `prepare` must run over the whole mini-batch before the loss does over its parts."""
        return self._prepare is not None

    def agg_mode(self, configured: LossAggMode) -> LossAggMode:
        """The aggregation to use for everything in the step: the configured one, unless the loss defines its own."""
        return self.fixed_agg_mode or configured

    def prepare(
        self,
        log_prob: Tensor,
        old_log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        config: ActorConfig,
        seed: int = 0,
        row_keys: Tensor | None = None,
    ) -> Tensor:
        """The selection [B, R] bool over all rows of one optimizer step; hand each part its rows of it.

        It does not depend on the order of rows, on padding or on ranks. `row_keys` [B] int64 names the rows (by content
        if not given), `seed` makes another draw.
        """
        assert self._prepare is not None, f"{self.name} selects nothing"
        return self._prepare(log_prob, old_log_prob, advantages, response_mask, config, seed=seed, row_keys=row_keys)

    def __call__(
        self,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str,
        config: ActorConfig,
        rollout_is_weights: Tensor | None = None,
        selection: Tensor | None = None,
        l_max: float | None = None,
    ) -> tuple[Tensor, Metrics]:
        """The loss as a sum, and metrics that add up. All tensors [B, R]; `l_max`: see aggregation.py."""
        if self.fixed_agg_mode is not None and loss_agg_mode != self.fixed_agg_mode:
            raise ConfigError(
                f"policy loss {self.name!r} aggregates by {self.fixed_agg_mode}, not {loss_agg_mode}; ask its "
                "agg_mode() and divide by agg_count() of that mode"
            )
        if self.needs_selection and selection is None:
            raise ConfigError(
                f"policy loss {self.name!r} needs the selection that its prepare() makes of the mini-batch"
            )
        optional = {"rollout_is_weights": rollout_is_weights, "selection": selection, "l_max": l_max}
        return self.function(
            old_log_prob,
            log_prob,
            advantages,
            response_mask,
            loss_agg_mode,
            config,
            **self._signature.accepted(optional),
        )

    def __repr__(self) -> str:
        return f"PolicyLossEntry({self.name!r})"


_ENTRIES: dict[str, PolicyLossEntry] = {}


def register_policy_loss(
    name: str,
    prepare: SelectionFunction | None = None,
    fixed_agg_mode: LossAggMode | None = None,
    proportional: bool = False,
) -> Callable[[PolicyLossFunction], PolicyLossFunction]:
    """Register a loss function under a name.

    It is called as (old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config) and by keyword with those
    of rollout_is_weights, selection and l_max that it takes, and returns (loss_sum, Metrics).
    """

    def register(function: PolicyLossFunction) -> PolicyLossFunction:
        known = _ENTRIES.get(name)
        if known is not None and known.function.__qualname__ != function.__qualname__:
            raise ConfigError(f"policy loss {name!r} is already {known.function.__qualname__}; choose another name")
        _ENTRIES[name] = PolicyLossEntry(name, function, prepare, fixed_agg_mode, proportional)
        return function

    return register


def policy_loss_names() -> list[str]:
    """The registered names, sorted."""
    return sorted(_ENTRIES)


def get_policy_loss_fn(name: str) -> PolicyLossEntry:
    """The loss of a registered name, of `module:function`, or of `path/file.py:function`."""
    if name in _ENTRIES:
        return _ENTRIES[name]
    if ":" not in name:
        raise ConfigError(
            f"policy_loss.loss_mode {name!r} is unknown{nearest(name, _ENTRIES)}; or module:function of your own"
        )
    function = load_function(name, "policy_loss.loss_mode")
    registered = [entry for entry in _ENTRIES.values() if entry.function is function]
    return registered[0] if registered else PolicyLossEntry(name, function)
