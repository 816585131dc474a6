"""RayPPOTrainer: one controller conducts groups of workers.

`fit` is the whole algorithm: generate, reward, log-probs, values, advantage, update, publish, record. PPO, GRPO and
their family are this loop with other parts plugged in; the arithmetic lives in pure functions (podium.algorithms,
trainer/advantage.py), the models in the workers. The same code runs in one process and on a Ray cluster: the kind of
worker group is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from podium.algorithms import get_adv_estimator_fn, get_kl_controller, mismatch_warning, sequence_cost
from podium.checkpoint.store import CheckpointStore
from podium.config.schema import Config
from podium.data.dataset import Batch, RLHFDataset
from podium.data.sampler import ResumableSampler
from podium.errors import ConfigError, TrainingError
from podium.metric import Metric, reduce_metrics
from podium.protocol import DataProto
from podium.rewards.manager import RewardManager
from podium.single_controller import (
    LocalWorkerGroup,
    RayClassWithInitArgs,
    ResourcePoolManager,
    Role,
    WorkerGroup,
    create_colocated_worker_cls,
)
from podium.trainer.advantage import (
    apply_rollout_correction,
    apply_score_penalties,
    compute_advantage,
    count_zero_std_groups,
    shape_rewards,
)
from podium.trainer.alignment import align_representations
from podium.trainer.metrics import (
    compute_data_metrics,
    compute_throughout_metrics,
    compute_timing_metrics,
    memory_metrics,
)
from podium.trainer.mini_batches import assign_mini_batches, partition_over_ranks, seqlen_metrics
from podium.trainer.recorder import Recorder
from podium.trainer.requirements import needs_old_log_probs
from podium.trainer.rollout_queue import PendingRollout, RolloutQueue
from podium.trainer.samples import make_samples
from podium.trainer.scoring import (
    add_greedy_baseline,
    check_versions,
    drop_flat_groups,
    gather_groups,
    num_groups,
    score_batch,
)
from podium.trainer.timing import marked_timer
from podium.trainer.validation import ValidationResult, validate

StepMetrics = dict[str, float | Metric]


class RayPPOTrainer:
    def __init__(
        self,
        config: Config,
        tokenizer: Any,
        role_worker_mapping: Mapping[Role, type],
        resource_pool_manager: ResourcePoolManager,
        ray_worker_group_cls: type[WorkerGroup],
        processor: Any = None,
        reward_fn: RewardManager | None = None,
        val_reward_fn: RewardManager | None = None,
        train_dataset: RLHFDataset | None = None,
        val_dataset: RLHFDataset | None = None,
        collate_fn: Callable[[list[dict[str, Any]]], Batch] | None = None,
        train_sampler: ResumableSampler | None = None,
        device_name: str = "cpu",
    ) -> None:
        self.config, self.tokenizer, self.processor, self.device_name = config, tokenizer, processor, device_name
        self.role_worker_mapping, self.resource_pool_manager = role_worker_mapping, resource_pool_manager
        self.ray_worker_group_cls = ray_worker_group_cls
        if reward_fn is None or train_dataset is None:
            raise ConfigError("RayPPOTrainer needs a reward_fn and a train_dataset")
        self.reward_fn, self.val_reward_fn = reward_fn, val_reward_fn or reward_fn
        self.train_dataset, self.val_dataset = train_dataset, val_dataset
        self.collate_fn = collate_fn or train_dataset.collate_fn
        self.estimator = get_adv_estimator_fn(config.algorithm.adv_estimator)
        self.use_critic = bool(config.critic.enable)
        self.use_reference_policy = Role.ActorRolloutRef in role_worker_mapping
        self.kl_ctrl = get_kl_controller(config.algorithm.kl_ctrl)
        self.train_sampler = train_sampler or ResumableSampler(
            len(train_dataset), config.data.train_batch_size, config.trainer.seed, config.data.shuffle
        )
        steps = config.trainer.total_training_steps
        self.total_training_steps = steps or config.trainer.total_epochs * len(self.train_sampler)
        self.run_folder = Path(config.trainer.default_local_dir)
        self.checkpoints = CheckpointStore(self.run_folder / "checkpoints")
        self.recorder = Recorder(config, self.total_training_steps)
        self.needs_old_log_probs = needs_old_log_probs(config)
        self.rollouts = RolloutQueue(self._submit_rollout, config.trainer.max_staleness)
        self.global_steps = 0
        self.policy_version = 0
        self.skipped_in_a_row = 0

    def init_workers(self) -> None:
        """Start every role's workers and load their models."""
        actor_role = Role.ActorRolloutRef if self.use_reference_policy else Role.ActorRollout
        roles = {actor_role: "actor_rollout"} | ({Role.Critic: "critic"} if self.use_critic else {})
        classes = {
            name: RayClassWithInitArgs(self.role_worker_mapping[role], self.config, role, self.total_training_steps)
            for role, name in roles.items()
        }
        self.workers = self._start_group(actor_role, create_colocated_worker_cls(classes))
        groups: dict[str, Any] = dict(self.workers.spawn(list(classes)))
        self.actor_rollout_wg, self.critic_wg = groups["actor_rollout"], groups.get("critic")
        for group in groups.values():
            group.init_model()
        self.cost_factor = self.actor_rollout_wg.cost_factor()

    def _start_group(self, role: Role, spec: RayClassWithInitArgs) -> WorkerGroup:
        if issubclass(self.ray_worker_group_cls, LocalWorkerGroup):
            return self.ray_worker_group_cls(spec, use_gpu=self.device_name == "cuda")
        self.resource_pool_manager.create_resource_pool()
        return self.ray_worker_group_cls(  # type: ignore[call-arg]
            resource_pool=self.resource_pool_manager.get_resource_pool(role),
            ray_cls_with_init=spec,
            start_timeout_s=self.config.trainer.worker_start_timeout_s,
            call_timeout_s=self.config.trainer.worker_timeout_s,
        )

    def shutdown(self) -> None:
        """End the workers and give the terminal back; safe at any time."""
        if hasattr(self, "workers"):
            self.workers.shutdown()
        self.recorder.close()

    def fit(self) -> None:
        """Train from the newest checkpoint, or from the start, to the last step."""
        trainer, algorithm = self.config.trainer, self.config.algorithm
        self._load_checkpoint()
        if self.global_steps >= self.total_training_steps:
            self.recorder.nothing_to_do(self.global_steps)
            return
        if trainer.val_before_train and self.global_steps == 0:
            self._validate()
        while self.global_steps < self.total_training_steps:
            self.global_steps += 1
            metrics: StepMetrics = {}
            timing: dict[str, float] = {}
            with marked_timer("step", timing):
                batch = self._collect_rollouts(metrics, timing)
                self._balance_batch(batch, metrics)
                if self.needs_old_log_probs:
                    with marked_timer("old_log_prob", timing):
                        batch.union(self.actor_rollout_wg.compute_log_prob(batch))
                        metrics |= apply_rollout_correction(batch, algorithm)
                if self.use_reference_policy:
                    with marked_timer("ref", timing):
                        batch.union(self.actor_rollout_wg.compute_ref_log_prob(batch))
                if self.critic_wg is not None:
                    with marked_timer("values", timing):
                        batch.union(self.critic_wg.compute_values(batch))
                with marked_timer("adv", timing):
                    metrics |= shape_rewards(
                        batch, algorithm, self.kl_ctrl, self.global_steps, self.total_training_steps
                    )
                    if algorithm.repr_align.enable:
                        metrics |= align_representations(
                            batch,
                            self.actor_rollout_wg,
                            self.tokenizer,
                            self.config,
                            self.global_steps,
                            self.total_training_steps,
                        )
                    compute_advantage(
                        batch,
                        adv_estimator=algorithm.adv_estimator,
                        gamma=algorithm.gamma,
                        lam=algorithm.lam,
                        num_repeat=self.config.actor_rollout_ref.rollout.n,
                        norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
                        config=algorithm,
                    )
                    metrics |= count_zero_std_groups(batch)
                if self.critic_wg is not None:
                    with marked_timer("update_critic", timing):
                        metrics |= self.critic_wg.update_critic(batch)
                if trainer.critic_warmup < self.global_steps:
                    with marked_timer("update_actor", timing):
                        metrics |= self.actor_rollout_wg.update_actor(batch)
                    with marked_timer("update_weights", timing):
                        self._publish(metrics)
            self._record(batch, metrics, timing)
            last = self.global_steps == self.total_training_steps
            if self.val_dataset and (last or (trainer.test_freq > 0 and self.global_steps % trainer.test_freq == 0)):
                self._validate()
            if trainer.save_freq != 0 and (
                last or (trainer.save_freq > 0 and self.global_steps % trainer.save_freq == 0)
            ):
                self._save_checkpoint()
        self.recorder.finish()

    # ---- the parts of a step that need the controller's state

    def _submit_rollout(self) -> PendingRollout:
        """Draw the next prompts and start their generation."""
        state = self.train_sampler.state_dict()
        rows, epoch = self.train_sampler.next_batch(), self.train_sampler.epoch
        prompts = DataProto.from_single_dict(self.collate_fn([self.train_dataset[row] for row in rows]))
        request = self._generation_request(prompts, epoch)
        baseline = None
        if self.estimator.needs_greedy_baseline:
            baseline = self.actor_rollout_wg.generate_sequences(self._generation_request(prompts, epoch, greedy=True))
        output = self.actor_rollout_wg.generate_sequences(request)
        return PendingRollout(prompts, output, baseline, state, self.policy_version)

    def _generation_request(self, prompts: DataProto, epoch: int, **flags: bool) -> DataProto:
        request = prompts.select(["prompts", "attention_mask"], ["uid"])
        request.meta_info = {"seed": self.config.trainer.seed, "epoch": epoch, **flags}
        return request

    def _join(self, prompts: DataProto, output: DataProto) -> DataProto:
        """Each prompt's columns beside each of its samples."""
        repeated = prompts.select([]).repeat(len(output) // max(len(prompts), 1))
        return repeated.union(output)

    def _collect_rollouts(self, metrics: StepMetrics, timing: dict[str, float]) -> DataProto:
        """Generate and score; with `filter_groups`, again until enough groups carry a signal."""
        settings, parts = self.config.algorithm.filter_groups, []
        for _ in range(settings.max_num_gen_batches if settings.enable else 1):
            with marked_timer("gen", timing):
                pending = self.rollouts.next(self.total_training_steps - self.global_steps + 1)
                generated = self._join(pending.prompts, pending.output.get())
                check_versions(generated, pending.version, self.policy_version)
            with marked_timer("reward", timing):
                batch, outcome = score_batch(generated, self.reward_fn)
                metrics |= outcome.metrics
                metrics["training/staleness"] = float(self.policy_version - pending.version)
                self.recorder.rollouts(self.global_steps, make_samples(generated, outcome, self.tokenizer.decode))
                if pending.baseline is not None:
                    greedy = self._join(pending.prompts, pending.baseline.get())
                    batch = add_greedy_baseline(batch, greedy, self.reward_fn(greedy).scores)
            parts.append(drop_flat_groups(batch) if settings.enable else batch)
            if num_groups(parts) >= self.config.data.train_batch_size:
                break
        batch = gather_groups(parts, self.config, metrics)
        limit = self.config.data.max_response_length
        return apply_score_penalties(batch, self.config.algorithm, self.tokenizer.eos_token_id, limit)

    def _balance_batch(self, batch: DataProto, metrics: StepMetrics, logging_prefix: str = "global_seqlen") -> None:
        """Cut the batch into optimizer steps and share each of them over the ranks by cost."""
        mini = self.config.actor_rollout_ref.actor.ppo_mini_batch_size
        assert mini is not None, "resolved by load_config"
        lengths = batch.tensors()["attention_mask"].sum(-1).tolist()
        costs = [sequence_cost(length, self.cost_factor) for length in lengths]
        batch.meta_info |= {
            "num_mini_batches": assign_mini_batches(batch, mini),
            "seed": self.config.trainer.seed + self.global_steps,
            "with_sum_pi_squared": self.estimator.needs_sum_pi_squared,
        }
        ranks = self.actor_rollout_wg.world_size
        parts = partition_over_ranks(batch, costs, ranks, self.config.trainer.balance_batch)
        batch.meta_info["dp_partition"] = parts
        metrics |= seqlen_metrics(lengths, parts, logging_prefix)

    def _publish(self, metrics: StepMetrics) -> None:
        """Give the rollout engine the new weights, unless the update was skipped."""
        skipped = metrics.get("actor/skipped_updates")
        num_skipped = int(skipped.result()) if isinstance(skipped, Metric) else 0
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if num_skipped else 0
        if self.skipped_in_a_row > self.config.trainer.max_skipped_updates:
            raise TrainingError(
                f"{self.skipped_in_a_row} steps in a row had a non-finite loss or gradient, more than "
                f"trainer.max_skipped_updates={self.config.trainer.max_skipped_updates} allows; lower the learning "
                "rate, or look in the log for the first bad tensor"
            )
        self.policy_version = self.global_steps
        metrics |= self.actor_rollout_wg.publish(self.policy_version)

    def _record(self, batch: DataProto, metrics: StepMetrics, timing: dict[str, float]) -> None:
        numbers = {"training/global_step": float(self.global_steps), "training/epoch": float(self.train_sampler.epoch)}
        numbers |= reduce_metrics(metrics)
        numbers |= compute_data_metrics(batch, self.use_critic, self.config.data.max_response_length)
        numbers |= compute_timing_metrics(batch, timing)
        numbers |= compute_throughout_metrics(batch, timing, self.actor_rollout_wg.world_size)
        gap = numbers.get("rollout_corr/prob_diff", 0.0)
        if self.config.actor_rollout_ref.rollout.is_unfiltered and (warning := mismatch_warning(gap)):
            self.recorder.console.message(warning)
        self.recorder.step(self.global_steps, numbers | memory_metrics())

    # ---- validation and checkpoints

    def _validate(self) -> ValidationResult | None:
        """Score the validation set with the newest weights."""
        if self.val_dataset is None or len(self.val_dataset) == 0:
            return None
        timing: dict[str, float] = {}
        with marked_timer("testing", timing):
            generate, decode = self._generate_for_validation, self.tokenizer.decode
            result = validate(self._val_batches(), generate, self.val_reward_fn, decode)
        seconds = {"timing_s/testing": timing["testing"]}
        self.recorder.validation(self.global_steps, result.metrics | seconds, result.samples)
        return result

    def _val_batches(self) -> Iterator[DataProto]:
        assert self.val_dataset is not None
        size = self.config.data.val_batch_size or len(self.val_dataset)
        for start in range(0, len(self.val_dataset), size):
            rows = [self.val_dataset[i] for i in range(start, min(start + size, len(self.val_dataset)))]
            yield DataProto.from_single_dict(self.collate_fn(rows))

    def _generate_for_validation(self, prompts: DataProto) -> DataProto:
        request = self._generation_request(prompts, epoch=-1, validate=True)
        return self._join(prompts, self.actor_rollout_wg.generate_sequences(request).get())

    def _save_checkpoint(self) -> Path:
        """Everything a resumed run needs, and the model as a Hugging Face folder."""
        state = {
            "global_steps": self.global_steps,
            "policy_version": self.policy_version,
            "sampler": self.rollouts.resume_state() or self.train_sampler.state_dict(),
            "kl_ctrl": self.kl_ctrl.state_dict(),
        }
        path = self.checkpoints.save(self.global_steps, state, self._write_models)
        self.recorder.checkpoint(self.global_steps, path)
        return path

    def _write_models(self, folder: Path) -> None:
        self.actor_rollout_wg.save_checkpoint(str(folder))
        if self.critic_wg is not None:
            self.critic_wg.save_checkpoint(str(folder))

    def _load_checkpoint(self) -> None:
        """Go on from what `trainer.resume_mode` says."""
        path = self.checkpoints.find(self.config.trainer.resume_mode)
        if path is not None:
            state = self.checkpoints.read_state(path)
            self.global_steps, self.policy_version = state["global_steps"], state["policy_version"]
            self.train_sampler.load_state_dict(state["sampler"])
            self.kl_ctrl.load_state_dict(state["kl_ctrl"])
            self.actor_rollout_wg.load_checkpoint(str(path))
            if self.critic_wg is not None:
                self.critic_wg.load_checkpoint(str(path))
        self.recorder.start(self.global_steps, resumed_from=path)
        self.actor_rollout_wg.publish(self.policy_version)
