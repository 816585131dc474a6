"""SupervisedTrainer: the loop of `podium sft` and `podium train-reward`.

Draw rows, take an optimizer step, record; validate and save when due. Run folder, checkpoints, trackers and the answer
to signals are those of `podium train`, and so is the exact resume: a run that was interrupted sees the rows it would
have seen. What is learned, and from which rows, is the worker's and the dataset's matter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from podium.algorithms import get_seqlen_balanced_partitions
from podium.checkpoint import rng
from podium.checkpoint.remote import make_uploader
from podium.checkpoint.store import CheckpointStore, Retention
from podium.config.load import load_settings, save_config
from podium.config.schema import Config
from podium.config.schema_sft import SupervisedConfig, check_supervised
from podium.data.dataset import validation_files
from podium.data.responses import ExampleRows, PairRows
from podium.data.sampler import ResumableSampler
from podium.errors import PodiumError
from podium.metric import Metrics, merge_metrics, reduce_metrics
from podium.models.load import load_tokenizer
from podium.protocol import DataProto
from podium.single_controller import (
    LocalWorkerGroup,
    RayClassWithInitArgs,
    ResourcePoolManager,
    Role,
    WorkerGroup,
)
from podium.single_controller.supervise import FailurePolicy
from podium.tracking import RunSummary
from podium.trainer.changes import changed_settings
from podium.trainer.limits import StepLimits
from podium.trainer.main_ppo import resolve_device
from podium.trainer.metrics import memory_metrics
from podium.trainer.recorder import Recorder
from podium.trainer.restarts import attempt, run_with_restarts
from podium.trainer.resume import ResumePoint
from podium.trainer.saving import CheckpointSaver, next_folder, open_store
from podium.trainer.stopping import RunStopped, StopSignals, stoppable
from podium.workers.supervised import RewardTrainingWorker, SFTWorker, SupervisedWorker


@dataclass(frozen=True)
class Job:
    """What a command learns, and from what."""

    command: str
    worker: type[SupervisedWorker]
    rows: type[ExampleRows] | type[PairRows]
    next_setting: str
    """The setting of `podium train` that takes the result."""


SFT = Job("sft", SFTWorker, ExampleRows, "actor_rollout_ref.model.path={}")
REWARD = Job("train-reward", RewardTrainingWorker, PairRows, "reward_model.enable=true reward_model.model.path={}")


def run_supervised(config: SupervisedConfig, job: Job) -> int:
    """Train as the configuration says; returns the exit code. Lost workers are replaced."""
    check_supervised(config)
    return run_with_restarts(config.trainer, partial(run_once, config, job))


def run_once(
    config: SupervisedConfig, job: Job, stopping: StopSignals, policy: FailurePolicy, before: PodiumError | None
) -> PodiumError | None:
    """One attempt; see restarts.py."""
    trainer = SupervisedTrainer(config, job, stopping, is_restart=before is not None)
    return attempt(trainer, config.trainer, stopping, policy, lambda: trainer.workers)


def start_workers(config: SupervisedConfig, job: Job, total_steps: int, use_gpu: bool) -> WorkerGroup:
    """One worker in this process, or several on Ray."""
    trainer = config.trainer
    spec = RayClassWithInitArgs(job.worker, config, total_steps)
    if trainer.runtime == "local":
        return LocalWorkerGroup(spec, use_gpu=use_gpu)
    from podium.single_controller import RayWorkerGroup

    pools = ResourcePoolManager(
        {"global_pool": [trainer.n_gpus_per_node] * trainer.nnodes}, {Role.Actor: "global_pool"}, use_gpu=use_gpu
    )
    pools.create_resource_pool()
    return RayWorkerGroup(
        resource_pool=pools.get_resource_pool(Role.Actor),
        ray_cls_with_init=spec,
        start_timeout_s=trainer.worker_start_timeout_s,
        call_timeout_s=trainer.worker_timeout_s,
    )


def share_out(batch: DataProto, ranks: int) -> DataProto:
    """Say which rank takes which rows: about as many tokens each, the two sides of a pair together."""
    tensors = batch.tensors()
    size = 2 if "is_chosen" in tensors else 1
    costs = tensors["attention_mask"].sum(-1).reshape(len(batch) // size, size).sum(-1).tolist()
    if len(costs) >= ranks:
        shares = get_seqlen_balanced_partitions(costs, ranks, equal_size=False)
    else:
        shares = [[number] if number < len(costs) else [] for number in range(ranks)]
    rows = [[number * size + side for number in sorted(share) for side in range(size)] for share in shares]
    batch.meta_info["dp_partition"] = rows
    return batch


class SupervisedRecorder(Recorder):
    """The record of such a run. Console and trackers read a `Config`; they get one that names the same run."""

    def __init__(self, config: SupervisedConfig, job: Job, total_steps: int) -> None:
        shown = Config(trainer=config.trainer)
        shown.actor_rollout_ref.model, shown.data.train_files = config.model, config.data.train_files
        shown.algorithm.adv_estimator = job.command
        super().__init__(shown, total_steps)
        self.settings, self.job = config, job

    def start(self, step: int, resumed_from: Path | None, is_restart: bool = False) -> None:
        super().start(step, resumed_from, is_restart)
        save_config(self.settings, self.log.folder / "config.yaml")

    def _notes(self) -> list[str]:
        return []  # they are about reinforcement

    def _changes(self, resumed_from: Path) -> dict[str, str]:
        compared = ("data.", "model.", "optim.", "grad_clip", "center_coef", "trainer.seed")
        return changed_settings(resumed_from, self.settings, partial(load_settings, type(self.settings)), compared)

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self.log.log(step, metrics)
        words = ", ".join(f"{name.split('/')[-1]} {value:.4f}" for name, value in metrics.items())
        self.console.message(f"validation at step {step}: {words}")
        for tracker in self.trackers:
            tracker.log(step, metrics)

    def finish(self) -> None:
        self.log.event("finished")
        commands = [f"podium train {self.job.next_setting.format(path / 'hf')}" for path in self.saved[-1:]]
        self.console.finish(
            RunSummary(checkpoints=[path for path in self.saved if path.exists()], next_commands=commands)
        )


class SupervisedTrainer:
    def __init__(self, config: SupervisedConfig, job: Job, stopping: StopSignals, is_restart: bool = False) -> None:
        self.config, self.job, self.name, self.is_restart = config, job, job.worker.name, is_restart
        trainer, data = config.trainer, config.data
        self.device = resolve_device(trainer.device)
        tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
        self.rows = job.rows(data.train_files, tokenizer, data, "train")
        held_out = validation_files(data)
        self.val_rows = job.rows(held_out, tokenizer, data, "val") if held_out else None
        self.sampler = ResumableSampler(len(self.rows), data.train_batch_size, trainer.seed, data.shuffle)
        self.sampler_state = self.sampler.state_dict()
        self.total_steps = trainer.total_training_steps or trainer.total_epochs * len(self.sampler)
        self.run_folder = Path(trainer.default_local_dir)
        keep = Retention(trainer.max_ckpt_to_keep, trainer.best_metric, trainer.best_metric_mode == "max")
        self.checkpoints = CheckpointStore(self.run_folder / "checkpoints", keep)
        self.recorder = SupervisedRecorder(config, job, self.total_steps)
        uploader = make_uploader(trainer.default_hdfs_dir, self.recorder.event, keep)
        self.saver = CheckpointSaver(self.checkpoints, self.recorder, uploader, trainer)
        self.stopping, self.limits = stopping, StepLimits(trainer)
        self.step, self.validated_step, self.validation_metrics = 0, -1, dict[str, float]()
        self.workers: Any = None

    def init_workers(self) -> None:
        """Start the workers and load their models."""
        rng.seed(self.config.trainer.seed)
        self.workers = start_workers(self.config, self.job, self.total_steps, use_gpu=self.device == "cuda")
        self.workers.init_model()

    @stoppable
    def fit(self) -> None:
        """Train from the newest checkpoint, or from the start, to the last step."""
        self._load_checkpoint()
        if self.step >= self.total_steps:
            self.recorder.nothing_to_do(self.step)
            return
        self._validate_if_due()
        while self.step < self.total_steps:
            start = time.perf_counter()
            batch = self.rows.fetch(self.sampler.next_batch())
            with self.stopping.protected():  # a step that is begun is finished
                self.step += 1
                metrics: Metrics = self.workers.update(share_out(batch, self.workers.world_size))
                tokens = float(batch.tensors()["attention_mask"].sum())
                self._record(metrics, tokens, time.perf_counter() - start)
            self._validate_if_due()
            self._save_if_due()
        self.saver.finish()
        self.recorder.finish()

    def shutdown(self) -> None:
        """End the worker and give the terminal back; safe at any time."""
        with self.stopping.shielded():
            self.saver.leave()
            if self.workers is not None:
                self.workers.shutdown()
            self.saver.close()
            self.recorder.close()

    def _record(self, metrics: Metrics, tokens: float, seconds: float) -> None:
        numbers = {"training/global_step": float(self.step), "training/epoch": float(self.sampler.epoch)}
        numbers |= reduce_metrics(metrics)
        numbers |= {"timing_s/step": seconds, "perf/time_per_step": seconds, "perf/total_num_tokens": tokens}
        numbers |= {"perf/throughput": tokens / max(seconds, 1e-9), "data/dropped": float(len(self.rows.dropped))}
        self.recorder.step(self.step, memory_metrics() | numbers)
        self.sampler_state = self.sampler.state_dict()  # rows that are drawn after this and dropped are drawn again
        report = partial(self.recorder.event, "update_skipped", step=self.step)
        self.limits.count_skipped(numbers, {self.name: self.workers}, report)
        self.stopping.step_took(seconds, self.saver.longest_s)

    def _validate_if_due(self) -> None:
        trainer, step = self.config.trainer, self.step
        due = trainer.val_before_train if step == 0 else trainer.test_freq > 0 and step % trainer.test_freq == 0
        if self.val_rows is None or self.validated_step == step or not (due or step == self.total_steps):
            return
        size, count = self.config.data.val_batch_size, len(self.val_rows)
        parts = [self.val_rows.fetch(range(at, min(at + size, count))) for at in range(0, count, size)]
        ranks = self.workers.world_size
        judged = [self.workers.evaluate(share_out(part, ranks)) for part in parts if len(part)]
        numbers = reduce_metrics(merge_metrics(judged))
        self.validated_step = step
        self.validation_metrics = {f"val/{name}": value for name, value in numbers.items() if math.isfinite(value)}
        self.recorder.evaluated(step, self.validation_metrics)

    # ---- checkpoints

    def _save_if_due(self) -> None:
        frequency, last = self.config.trainer.save_freq, self.step == self.total_steps
        if frequency != 0 and (last or (frequency > 0 and self.step % frequency == 0)):
            with self.stopping.protected():
                self._save()

    def _save(self) -> None:
        state = {
            "global_steps": self.step,
            "validated_step": self.validated_step,
            "sampler": self.sampler_state,
            "limits": self.limits.state_dict(),
            "trackers": self.recorder.tracker_ids(),
            "rng": rng.capture(),
        }
        metrics = self.validation_metrics if self.validated_step == self.step else {}
        self.saver.save(ResumePoint(self.step, state), metrics, [self.workers])

    def _save_and_leave(self, stop: RunStopped) -> None:
        self.saver.wait()
        if self.step > 0 and self.config.trainer.save_freq != 0 and self.saver.saved_step != self.step:
            self._save()
            self.saver.wait()
        self.recorder.stopped(self.step, stop.reason, self.saver.saved_step)

    def _load_checkpoint(self) -> None:
        mode = self.config.trainer.resume_mode
        if self.is_restart and (mode == "disable" or self.checkpoints.newest(deep=False).path):
            mode = "auto"  # this run's own, whatever it began with
        found = open_store(self.checkpoints, self.saver.uploader, mode)
        for path, fault in found.broken.items():
            self.recorder.broken_checkpoint(path, fault)
        state = None if found.path is None else self.checkpoints.read_state(found.path)
        if mode not in ("auto", "must") or state is None:
            after = -1 if state is None else state["global_steps"]
            self.checkpoints.set_aside(next_folder(self.run_folder / "previous") / "checkpoints", after=after)
        if state is not None:
            self.sampler_state = state["sampler"]
            self.sampler.load_state_dict(self.sampler_state)
            self.limits.load_state_dict(state["limits"])
            self.recorder.resume_trackers(state["trackers"])
            rng.restore(state["rng"])
            self.workers.load_checkpoint(str(found.path))
            # only now: a stop before this would save weights that were never loaded as the step's
            self.step = self.saver.saved_step = state["global_steps"]
            self.validated_step = state["validated_step"]
        self.recorder.start(self.step, resumed_from=found.path, is_restart=self.is_restart)
