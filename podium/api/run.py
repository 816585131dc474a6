"""CallbackTrainer: RayPPOTrainer with callbacks around its phases and TRL's metrics beside its own.

The loop is RayPPOTrainer's and is not repeated here: the methods it calls in each step are extended.
"""

from __future__ import annotations

from podium.api.callbacks import CallbackList
from podium.api.metrics import evaluation_metrics, group_metrics, objective_metrics, renamed
from podium.metric import reduce_metrics
from podium.protocol import DataProto
from podium.trainer.metrics import compute_data_metrics
from podium.trainer.ray_trainer import RayPPOTrainer, StepMetrics
from podium.trainer.validation import ValidationResult


class CallbackTrainer(RayPPOTrainer):
    callbacks: CallbackList
    """Set right after the trainer is made."""
    steps_left_out = 0
    """Steps of epochs that a callback ended early."""

    def _collect_rollouts(self, metrics: StepMetrics, timing: dict[str, float]) -> DataProto:
        self.callbacks.call("on_step_begin")
        batch = super()._collect_rollouts(metrics, timing)
        self.callbacks.call("on_rollout_end", samples=self.step_samples)
        return batch

    def _record(self, batch: DataProto, metrics: StepMetrics, timing: dict[str, float]) -> None:
        episodes = self.global_steps * self.config.data.train_batch_size * self.config.actor_rollout_ref.rollout.n
        numbers, groups = reduce_metrics(metrics), not self.use_critic
        metrics |= renamed(numbers, groups)
        coefficient = numbers.get("actor/reward_kl_penalty_coeff")
        metrics |= objective_metrics(batch, self.config.algorithm, self.tokenizer.eos_token_id, coefficient)
        if groups:
            metrics |= group_metrics(batch, numbers["critic/zero_std_groups"])
        metrics |= {"episode": float(episodes), "eps": len(batch) / timing["step"]}
        super()._record(batch, metrics, timing)
        state = self.callbacks.state
        state.global_step, state.episode = self.global_steps, episodes
        state.epoch = (self.global_steps + self.steps_left_out) / len(self.train_sampler)
        logs = reduce_metrics(metrics) | {"step": float(self.global_steps), "epoch": state.epoch}
        state.log_history.append(logs)
        self.callbacks.call("on_log", logs=logs)
        self.callbacks.call("on_step_end", metrics=logs)
        self._obey(logs, batch)

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        self.callbacks.state.global_step = self.global_steps
        self.callbacks.state.epoch = self.global_steps / len(self.train_sampler)

    def _obey(self, logs: dict[str, float], batch: DataProto) -> None:
        """Do what the callbacks ask for after a step."""
        control = self.callbacks.control
        if control.should_log:
            control.should_log = False
            self._report(logs, batch)
        if control.should_epoch_stop:
            control.should_epoch_stop = False
            self._end_epoch()
        self._stop_if_asked()
        if control.should_evaluate:
            control.should_evaluate = False
            self._validate()
        if control.should_save:
            control.should_save = False
            self._save_checkpoint()

    def _stop_if_asked(self) -> None:
        if self.callbacks.control.should_training_stop:
            self.total_training_steps = self.global_steps

    def _report(self, logs: dict[str, float], batch: DataProto) -> None:
        """Send a step to the trackers that `logging_steps` would have left out."""
        if self.global_steps % self.config.trainer.logging_freq:
            numbers = compute_data_metrics(batch, self.use_critic, self.config.data.max_response_length)
            for tracker in self.recorder.trackers:
                tracker.log(self.global_steps, numbers | logs)

    def _end_epoch(self) -> None:
        """Go on with the next epoch. As in transformers the run is shorter by the steps that are left out."""
        sampler = self.train_sampler
        left = (sampler.size - sampler.cursor) // sampler.batch_size
        sampler.epoch, sampler.cursor = sampler.epoch + 1, 0
        self.steps_left_out += left
        self.total_training_steps = max(self.global_steps, self.total_training_steps - left)
        self._mark()

    def _validate(self) -> ValidationResult | None:
        result = super()._validate()
        if result is not None:
            logs = evaluation_metrics(result)
            self.callbacks.state.log_history.append(logs | {"step": float(self.global_steps)})
            self.callbacks.call("on_evaluate", metrics=logs)
            self._stop_if_asked()
        return result

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        self.callbacks.call("on_save")
