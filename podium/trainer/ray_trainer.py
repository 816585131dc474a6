"""RayPPOTrainer: one controller conducts groups of workers.

`fit` is the whole algorithm: generate, reward, log-probs, values, advantage, update, publish, record. PPO, GRPO and
their family are this loop with other parts plugged in; the arithmetic lives in pure functions (podium.algorithms,
trainer/advantage.py), the models in the workers. The same code runs in one process and on a Ray cluster: the kind of
worker group is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from podium.algorithms import get_adv_estimator_fn, get_kl_controller, mismatch_warning, sequence_cost
from podium.checkpoint import rng
from podium.checkpoint.remote import make_uploader
from podium.checkpoint.store import CheckpointStore, Retention
from podium.config.schema import Config
from podium.data.dataset import Batch, RLHFDataset
from podium.data.sampler import ResumableSampler
from podium.errors import ConfigError
from podium.metric import Metric, reduce_metrics
from podium.protocol import DataProto
from podium.rewards.manager import RewardManager, RewardResult
from podium.single_controller import (
    LocalWorkerGroup,
    RayClassWithInitArgs,
    ResourcePoolManager,
    Role,
    WorkerGroup,
    create_colocated_worker_cls,
)
from podium.single_controller.supervise import FailurePolicy, Heartbeat, RestartGroup
from podium.tracking import Sample
from podium.trainer.advantage import (
    apply_kl_penalty,  # noqa: F401  (verl's users import it from here)
    apply_rollout_correction,
    apply_score_penalties,
    compute_advantage,
    count_zero_std_groups,
    shape_rewards,
)
from podium.trainer.alignment import align_representations
from podium.trainer.episodes import check_failures, prepare_episodes
from podium.trainer.limits import StepLimits, left_out
from podium.trainer.metrics import (
    compute_data_metrics,
    compute_throughout_metrics,
    compute_timing_metrics,
    memory_metrics,
)
from podium.trainer.mini_batches import assign_mini_batches, partition_over_ranks, seqlen_metrics
from podium.trainer.model_rewards import combine_scores, validation_scores
from podium.trainer.profiling import StepProfiles
from podium.trainer.recorder import Recorder
from podium.trainer.requirements import needs_old_log_probs
from podium.trainer.resume import ResumePoint, pending_state, read_pending
from podium.trainer.resumed_models import load_models
from podium.trainer.roles import find_actor, roles_together
from podium.trainer.rollout_queue import PendingRollout, RolloutQueue
from podium.trainer.rollout_workers import make_rollout_pool
from podium.trainer.samples import add_tokens, make_samples, number_samples
from podium.trainer.saving import CheckpointSaver, next_folder, open_store
from podium.trainer.scoring import (
    add_greedy_baseline,
    check_versions,
    drop_flat_groups,
    gather_groups,
    image_columns,
    num_groups,
    report_scores,
    score_batch,
    scored_columns,
)
from podium.trainer.seed_names import SeedNames, completed
from podium.trainer.stopping import RunStopped, StopSignals, stoppable
from podium.trainer.timing import marked_timer
from podium.trainer.validation import ValidationResult, validate

StepMetrics = dict[str, float | Metric]

METHOD_OF_PHASE = {
    "gen": "generate_sequences",
    "old_log_prob": "compute_log_prob",
    "ref": "compute_ref_log_prob",
    "values": "compute_values",
    "alignment": "compute_mean_hidden",
    "reward_model": "compute_rm_score",
    "update_weights": "publish",
}
"""Where the worker's method has another name than the phase."""


class RayPPOTrainer(SeedNames):
    @completed
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
        assert reward_fn is not None and train_dataset is not None, "found by @completed"
        self.reward_fn, self.val_reward_fn = reward_fn, val_reward_fn or reward_fn
        self.train_dataset, self.val_dataset = train_dataset, val_dataset
        self.collate_fn = collate_fn or train_dataset.collate_fn
        self.estimator = get_adv_estimator_fn(config.algorithm.adv_estimator)
        self.use_critic = bool(config.critic.enable)
        self.actor_role = find_actor(config, role_worker_mapping, resource_pool_manager)
        self.use_reference_policy = self.actor_role.has_reference
        self.kl_ctrl = get_kl_controller(config.algorithm.kl_ctrl)
        self.train_sampler = train_sampler or ResumableSampler(
            len(train_dataset), config.data.train_batch_size, config.trainer.seed, config.data.shuffle
        )
        trainer = config.trainer
        self.total_training_steps = trainer.total_training_steps or trainer.total_epochs * len(self.train_sampler)
        self.run_folder = Path(trainer.default_local_dir)
        keep = Retention(trainer.max_ckpt_to_keep, trainer.best_metric, trainer.best_metric_mode == "max")
        self.checkpoints = CheckpointStore(self.run_folder / "checkpoints", keep)
        self.recorder = Recorder(config, self.total_training_steps)
        uploader = make_uploader(trainer.default_hdfs_dir, self.recorder.event, keep)
        self.saver = CheckpointSaver(self.checkpoints, self.recorder, uploader, trainer)
        self.profiles = StepProfiles(config, self.recorder)
        self.stopping = StopSignals(trainer)
        self.needs_old_log_probs = needs_old_log_probs(config)
        self.rollouts = RolloutQueue(self._submit_rollout, config.trainer.max_staleness)
        self.global_steps = self.policy_version = 0
        self.step_samples: list[Sample] = []
        self.limits = StepLimits(trainer)
        self.validated_step, self.validation_metrics = -1, dict[str, float]()
        self.is_restart = False
        """Whether this trainer replaces one whose workers were lost."""
        self.resume_point: ResumePoint | None = None
        self.heartbeats: list[Heartbeat] = []
        self.failure_policy: FailurePolicy = RestartGroup(trainer.max_restarts)

    def init_workers(self) -> None:
        """Start every role's workers and load their models."""
        rng.seed(self.config.trainer.seed)
        classes = {
            name: RayClassWithInitArgs(worker, self.config, role, self.total_training_steps)
            for name, (role, worker) in roles_together(self.config, self.role_worker_mapping, self.actor_role).items()
        }
        self.workers = self._start_group(self.actor_role.pool_role, create_colocated_worker_cls(classes))
        groups: dict[str, Any] = dict(self.workers.spawn(list(classes)))
        self.actor_rollout_wg, self.critic_wg = groups["actor_rollout"], groups.get("critic")
        self.reward_model_wg: Any = groups.get("reward_model")
        for group in groups.values():
            group.init_model()
        self.cost_factor = self.actor_rollout_wg.cost_factor()
        self.rollout_wg: Any = self.actor_rollout_wg
        if Role.Rollout in self.role_worker_mapping:
            self.rollout_wg = make_rollout_pool(self)
        if self.config.reward_model.enable and self.config.reward_model.nnodes:
            spec = RayClassWithInitArgs(self.role_worker_mapping[Role.RewardModel], self.config, Role.RewardModel, 0)
            self.reward_workers = self.reward_model_wg = self._start_group(Role.RewardModel, spec)
            self.reward_model_wg.init_model()

    def _start_group(self, role: Role, spec: RayClassWithInitArgs) -> WorkerGroup:
        if issubclass(self.ray_worker_group_cls, LocalWorkerGroup):
            return self.ray_worker_group_cls(spec, use_gpu=self.device_name == "cuda")
        self.resource_pool_manager.create_resource_pool()
        trainer = self.config.trainer
        group = self.ray_worker_group_cls(  # type: ignore[call-arg]
            resource_pool=self.resource_pool_manager.get_resource_pool(role),
            ray_cls_with_init=spec,
            start_timeout_s=trainer.worker_start_timeout_s,
            call_timeout_s=trainer.worker_timeout_s,
            method_timeout_s={METHOD_OF_PHASE.get(phase, phase): s for phase, s in trainer.phase_timeout_s.items()},
        )
        report = partial(self.recorder.event, "workers_lost", role=group.role)
        self.heartbeats.append(Heartbeat(group, trainer.heartbeat_s, lambda ranks: report(ranks=ranks)))
        return group

    def shutdown(self) -> None:
        """End the workers and give the terminal back; safe at any time."""
        with self.stopping.shielded():
            for heartbeat in self.heartbeats:
                heartbeat.stop()
            self.saver.leave()
            for name in ("reward_workers", "rollout_workers", "workers"):
                if hasattr(self, name):
                    getattr(self, name).shutdown()
            self.saver.close()
            self.reward_fn.close()
            self.val_reward_fn.close()
            self.recorder.close()

    @stoppable
    def fit(self) -> None:
        """Train from the newest checkpoint, or from the start, to the last step."""
        trainer, algorithm = self.config.trainer, self.config.algorithm
        self._load_checkpoint()
        if trainer.val_only:
            self._validate_only()
            return
        if not self._validate_if_due() and self.global_steps >= self.total_training_steps:
            self.recorder.nothing_to_do(self.global_steps)
            return
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
            with self.stopping.protected():  # a stop drops the step up to here; from here on it is finished first
                with marked_timer("step", timing):
                    with marked_timer("adv", timing):
                        metrics |= shape_rewards(
                            batch, algorithm, self.kl_ctrl, self.global_steps, self.total_training_steps
                        )
                        if algorithm.repr_align.enable:
                            metrics |= self._align(batch)
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
                            self._publish(batch, metrics)
                self._record(batch, metrics, timing)
            self._validate_if_due()
            last = self.global_steps == self.total_training_steps
            if trainer.save_freq != 0 and (
                last or (trainer.save_freq > 0 and self.global_steps % trainer.save_freq == 0)
            ):
                self._save_checkpoint()
        self.saver.finish()
        self.recorder.finish()

    # ---- the parts of a step that need the controller's state

    def _submit_rollout(self) -> PendingRollout:
        """Draw the next prompts and start their generation."""
        state = self.train_sampler.state_dict()
        prompts, epoch = self._draw_prompts(), self.train_sampler.epoch
        request = self._generation_request(prompts, epoch)
        baseline = None
        if self.estimator.needs_greedy_baseline:
            baseline = self.rollout_wg.generate_sequences(self._generation_request(prompts, epoch, greedy=True))
        output = self.rollout_wg.generate_sequences(request)
        return PendingRollout(prompts, output, baseline, state, self.policy_version)

    def _draw_prompts(self, state: dict[str, int] | None = None) -> DataProto:
        """The sampler's next prompts; with a `state`, those that came next when it stood there."""
        if state is not None:
            self.train_sampler.load_state_dict(state)
        rows = self.train_sampler.next_batch()
        return DataProto.from_single_dict(self.collate_fn(self.train_dataset.fetch(rows)))

    def _generation_request(self, prompts: DataProto, epoch: int, **flags: bool) -> DataProto:
        streams = (self.val_reward_fn if flags.get("validate") else self.reward_fn).streams
        needed = scored_columns(prompts) if streams or self.config.is_multi_turn else ["uid"]
        request = prompts.select(["prompts", "attention_mask"], needed + image_columns(prompts).objects)
        request.meta_info = {"seed": self.config.trainer.seed, "epoch": epoch, "score": streams, **flags}
        return request

    def _join(self, prompts: DataProto, output: DataProto) -> DataProto:
        """Each prompt's columns beside each of its samples."""
        repeated = prompts.select(image_columns(prompts).tensors).repeat(len(output) // max(len(prompts), 1))
        return repeated.union(output)

    def _collect_rollouts(self, metrics: StepMetrics, timing: dict[str, float]) -> DataProto:
        """Generate and score; with `filter_groups`, again until enough groups carry a signal."""
        settings, parts = self.config.algorithm.filter_groups, []
        self.step_samples = []
        self.profiles.begin(self.global_steps, self)
        for _ in range(settings.max_num_gen_batches if settings.enable else 1):
            with marked_timer("gen", timing):
                pending = self.rollouts.next(self.total_training_steps - self.global_steps + 1)
                generated = self._join(pending.prompts, pending.output.get())
                check_versions(generated, pending.version, self.policy_version)
                number_samples(generated, start=len(self.step_samples))
                metrics |= generated.meta_info.pop("metrics", {}) | prepare_episodes(generated, self.config)
            with marked_timer("reward", timing):
                batch, outcome = score_batch(generated, self._reward)
                metrics |= outcome.metrics
                report_scores(self.train_sampler, generated, outcome)
                metrics["training/staleness"] = float(self.policy_version - pending.version)
                self.step_samples += make_samples(generated, outcome, self.tokenizer.decode)
                if pending.baseline is not None:
                    greedy = self._join(pending.prompts, pending.baseline.get())
                    batch = add_greedy_baseline(batch, greedy, self._reward(greedy).scores)
            parts.append(drop_flat_groups(batch) if settings.enable else batch)
            if num_groups(parts) >= self.config.data.train_batch_size:
                break
        batch = gather_groups(parts, self.config, metrics)
        limit = self.config.data.max_response_length
        return apply_score_penalties(batch, self.config.algorithm, self.tokenizer.eos_token_id, limit)

    def _reward(self, batch: DataProto) -> RewardResult:
        """The scores to train on: the rule's, the reward model's, or both."""
        pending = self.reward_fn.submit(batch)
        if self.reward_model_wg is None:
            return self.reward_fn.collect(pending)
        batch.union(self.reward_model_wg.compute_rm_score(batch))  # while the rules are at work
        outcome = self.reward_fn.collect(pending)
        return combine_scores(outcome, batch.tensors()["rm_scores"], self.config.reward_model)

    def _val_reward(self, batch: DataProto) -> RewardResult:
        outcome = self.val_reward_fn(batch)
        if self.reward_model_wg is None:
            return outcome
        return validation_scores(outcome, self.reward_model_wg.compute_rm_score(batch).tensors()["rm_scores"])

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

    def _align(self, batch: DataProto) -> StepMetrics:
        steps, say = (self.global_steps, self.total_training_steps), self.recorder.say_once
        return align_representations(batch, self.actor_rollout_wg, self.tokenizer, self.config, *steps, say=say)

    def _publish(self, batch: DataProto, metrics: StepMetrics) -> None:
        """Give the rollout engine the new weights; those that no update changed keep their version."""
        updates = batch.meta_info["num_mini_batches"] * self.config.actor_rollout_ref.actor.ppo_epochs
        if left_out(metrics, "actor") < updates:
            self.policy_version = self.global_steps
        metrics |= self.rollout_wg.publish(self.policy_version)

    def _record(self, batch: DataProto, metrics: StepMetrics, timing: dict[str, float]) -> None:
        numbers = {"training/global_step": float(self.global_steps), "training/epoch": float(self.train_sampler.epoch)}
        numbers |= reduce_metrics(metrics)
        numbers |= compute_data_metrics(batch, self.use_critic, self.config.data.max_response_length)
        numbers |= compute_timing_metrics(batch, timing)
        numbers |= compute_throughout_metrics(batch, timing, self.actor_rollout_wg.world_size)
        gap, mode = numbers.get("rollout_corr/prob_diff", 0.0), self.config.algorithm.rollout_correction.mode
        warning = mismatch_warning(gap, mode, int(numbers["training/staleness"]))
        if warning and self.config.actor_rollout_ref.rollout.is_unfiltered:
            self.recorder.console.message(warning)
        samples = add_tokens(self.step_samples, batch, self.tokenizer, self.config.trainer.log_token_samples)
        self.recorder.rollouts(self.global_steps, samples)
        self.recorder.step(self.global_steps, memory_metrics() | numbers)
        groups, report = {"actor": self.actor_rollout_wg, "critic": self.critic_wg}, self.recorder.event
        self.limits.count_skipped(numbers, groups, partial(report, "update_skipped", step=self.global_steps))
        self.limits.count_flat(numbers["critic/zero_std_groups"], num_groups([batch]))
        self.profiles.end(self.global_steps, self)
        self.stopping.step_took(timing["step"], self.saver.longest_s)
        self._mark()

    # ---- validation and checkpoints

    def _validate_if_due(self) -> bool:
        """Validate where this step asks for it, unless that was done before the run was interrupted."""
        trainer, step = self.config.trainer, self.global_steps
        due = trainer.val_before_train if step == 0 else trainer.test_freq > 0 and step % trainer.test_freq == 0
        if not (due or step == self.total_training_steps) or self.validated_step == step:
            return False
        return self._validate() is not None

    def _validate_only(self) -> None:
        """What `trainer.val_only` asks for: no training, one validation of the weights as they are."""
        if self._validate() is None:
            raise ConfigError("trainer.val_only needs validation rows: set data.val_files")
        self.recorder.finish()

    def _validate(self) -> ValidationResult | None:
        """Score the validation set with the newest weights."""
        if self.val_dataset is None or len(self.val_dataset) == 0:
            return None
        timing: dict[str, float] = {}
        with marked_timer("testing", timing):
            generate, decode = self._generate_for_validation, self.tokenizer.decode
            result = validate(self._val_batches(), generate, self._val_reward, decode)
        seconds = {"timing_s/testing": timing["testing"]}
        with self.stopping.protected():
            self.recorder.validation(self.global_steps, result.metrics | seconds, result.samples)
            self.validated_step, self.validation_metrics = self.global_steps, result.metrics
            self._mark()
        return result

    def _val_batches(self) -> Iterator[DataProto]:
        assert self.val_dataset is not None
        size = self.config.data.val_batch_size or len(self.val_dataset)
        for start in range(0, len(self.val_dataset), size):
            rows = range(start, min(start + size, len(self.val_dataset)))
            yield DataProto.from_single_dict(self.collate_fn(self.val_dataset.fetch(rows)))

    def _generate_for_validation(self, prompts: DataProto) -> DataProto:
        request = self._generation_request(prompts, epoch=-1, validate=True)
        batch = self._join(prompts, self.rollout_wg.generate_sequences(request).get())
        check_failures(batch, self.config.agent.max_failure_rate)
        return batch

    def _mark(self) -> None:
        """Remember where the run stands: a step that is begun after this and dropped leaves no trace."""
        pending = self.rollouts.pending
        state = {
            "global_steps": self.global_steps,
            "policy_version": self.policy_version,
            "validated_step": self.validated_step,
            "sampler": pending[0].sampler_state if pending else self.train_sampler.state_dict(),
            "rollouts": pending_state(pending),
            "kl_ctrl": self.kl_ctrl.state_dict(),
            "limits": self.limits.state_dict(),
            "trackers": self.recorder.tracker_ids(),
            "rng": rng.capture(),
        }
        self.resume_point = ResumePoint(self.global_steps, state, pending)

    def _save_checkpoint(self) -> None:
        """Everything a resumed run needs, and the model as a Hugging Face folder."""
        with self.stopping.protected():
            self._save_resume_point()

    def _save_resume_point(self) -> None:
        assert self.resume_point is not None, "a run that has begun has marked where it stands"
        groups = [group for group in (self.actor_rollout_wg, self.critic_wg) if group is not None]
        metrics = self.validation_metrics if self.validated_step == self.resume_point.step else {}
        self.saver.save(self.resume_point, metrics, groups)

    def _save_and_leave(self, stop: RunStopped) -> None:
        """The run was told to stop: save what the last finished step left, unless that is saved already."""
        self.saver.wait()
        point = self.resume_point
        if point is not None and point.step > 0 and self.config.trainer.save_freq != 0:
            if self.saver.saved_step != point.step:
                self._save_resume_point()
            self.saver.wait()
        self.recorder.stopped(point.step if point else self.global_steps, stop.reason, self.saver.saved_step)

    def _load_checkpoint(self) -> None:
        """Go on from what `trainer.resume_mode` says."""
        path = self._find_checkpoint()
        if path is not None:
            state = self.checkpoints.read_state(path)
            self.global_steps, self.policy_version = state["global_steps"], state["policy_version"]
            self.validated_step = state["validated_step"]
            self.train_sampler.load_state_dict(state["sampler"])
            self.rollouts.restore(read_pending(path, state["rollouts"], self._draw_prompts))
            self.kl_ctrl.load_state_dict(state["kl_ctrl"])
            self.limits.load_state_dict(state["limits"])
            self.recorder.resume_trackers(state["trackers"])
            rng.restore(state["rng"])
            load_models(path, self.config, self.actor_rollout_wg, self.critic_wg)
            self.saver.saved_step = self.global_steps
        self.recorder.start(self.global_steps, resumed_from=path, is_restart=self.is_restart)
        self.rollout_wg.publish(self.policy_version)
        self._mark()

    def _find_checkpoint(self) -> Path | None:
        """The checkpoint to go on from. Later ones of a way that is left now are moved out of the way."""
        mode = self.config.trainer.resume_mode
        if self.is_restart and (mode == "disable" or self.checkpoints.newest(deep=False).path):
            mode = "auto"
        found = open_store(self.checkpoints, self.saver.uploader, mode)
        for path, fault in found.broken.items():
            self.recorder.broken_checkpoint(path, fault)
        if mode not in ("auto", "must") or found.path is None:
            step = -1 if found.path is None else self.checkpoints.read_state(found.path)["global_steps"]
            self.checkpoints.set_aside(next_folder(self.run_folder / "previous") / "checkpoints", after=step)
        return found.path
