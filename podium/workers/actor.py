"""Actor: the policy that is trained, behind DataProto.

It turns a batch into optimizer steps of its train engine and states the policy's loss: the registered policy loss,
minus the entropy bonus, plus KL to the reference, each as a sum over tokens. The engine divides once. It does not know
how advantages came about, nor which device or how many ranks it runs on.
"""

from __future__ import annotations

from tensordict import TensorDict
from torch import Tensor

from podium.algorithms import (
    add_regularizers,
    agg_count,
    get_policy_loss_fn,
    observed_as_agreed,
    rollout_correction_metrics,
)
from podium.config.schema import ActorConfig, RolloutConfig
from podium.engines.train.base import ModelOutputs, TrainEngine
from podium.metric import Metric, Metrics, merge_metrics
from podium.protocol import DataProto
from podium.workers.optimization import gather_rows, optimizer_steps, run_updates


class Actor:
    def __init__(
        self, engine: TrainEngine, config: ActorConfig, rollout: RolloutConfig, max_response_length: int
    ) -> None:
        self.engine, self.config, self.temperature = engine, config, rollout.temperature
        self.l_max = float(max_response_length)
        self.policy_loss = get_policy_loss_fn(config.policy_loss.loss_mode)
        self.agg_mode = self.policy_loss.agg_mode(config.loss_agg_mode)
        self.measures_gap = rollout.is_unfiltered

    def compute_log_prob(self, data: DataProto) -> DataProto:
        """`old_log_probs` and `entropys` under the current weights; Σπ² when the batch asks for it."""
        squares = bool(data.meta_info.get("with_sum_pi_squared"))
        out = self.engine.log_probs(data, temperature=self.temperature, with_entropy=True, with_sum_pi_squared=squares)
        out["old_log_probs"] = out.pop("log_probs")
        return DataProto.from_dict(out)

    def update(self, data: DataProto) -> Metrics:
        steps = optimizer_steps(data, self.config.ppo_epochs, self.config.shuffle, int(data.meta_info["seed"]))
        return run_updates(steps, self._update_step, "actor")

    def _update_step(self, rows: DataProto) -> Metrics:
        if self.policy_loss.needs_selection:
            self._add_selection(rows)
        count = agg_count(rows.tensors()["response_mask"], self.agg_mode, self.l_max)
        taught = self._rows_that_teach(rows)
        metrics = self.engine.update(taught, self._loss, count, temperature=self.temperature)
        left_out = count - agg_count(taught.tensors()["response_mask"], self.agg_mode, self.l_max)
        return merge_metrics([metrics, {"actor/pg_loss": Metric.mean(0.0, left_out)}])

    def _rows_that_teach(self, rows: DataProto) -> DataProto:
        """Without the rows that add nothing to any gradient; they stay in the count, so the result is the same."""
        if not self.policy_loss.proportional or self.config.entropy_coeff or self.config.use_kl_loss:
            return rows
        return rows.select_idxs((rows.tensors()["advantages"] * rows.tensors()["response_mask"] != 0).any(-1))

    def _loss(self, outputs: ModelOutputs, rows: TensorDict) -> tuple[Tensor, Metrics]:
        mask, log_prob = rows["response_mask"], outputs.log_probs
        assert log_prob is not None
        # Strictly on-policy nobody recomputed the old log-probs: they are these, without their gradient.
        old_log_prob = rows.get("old_log_probs", log_prob.detach())
        loss, metrics = self.policy_loss(
            old_log_prob,
            log_prob,
            rows["advantages"],
            mask,
            self.agg_mode,
            self.config,
            rollout_is_weights=rows.get("rollout_is_weights", None),
            selection=rows.get("selection", None),
            l_max=self.l_max,
        )
        loss, more = add_regularizers(
            loss,
            mask,
            self.agg_mode,
            self.config,
            log_prob=log_prob,
            ref_log_prob=rows.get("ref_log_prob", None),
            entropy=outputs.entropy,
            l_max=self.l_max,
        )
        if self.measures_gap and "old_log_probs" not in rows:
            sampled = observed_as_agreed(rows["rollout_log_probs"], old_log_prob, rows.get("info_mask", None))
            more |= rollout_correction_metrics(old_log_prob, sampled, mask)
        return loss, metrics | more

    def _add_selection(self, rows: DataProto) -> None:
        """A loss that picks tokens by statistics of the whole optimizer step sees all ranks' rows beforehand."""
        tensors = rows.tensors()
        current = self.engine.log_probs(rows, temperature=self.temperature)["log_probs"]
        mine = {
            "log_prob": current,
            "old_log_prob": tensors.get("old_log_probs", current),
            "advantages": tensors["advantages"],
            "response_mask": tensors["response_mask"],
        }
        everyone, own = gather_rows(mine)
        selection = self.policy_loss.prepare(**everyone, config=self.config, seed=int(rows.meta_info["seed"]))
        rows.put(selection=selection[own])
