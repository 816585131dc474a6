"""The run: its folder, length, workers, checkpoints and limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class TrainerConfig:
    project_name: str = "podium"
    experiment_name: str = "default"
    """The name of the run. A recipe that does not say it gives its own: `my.yaml` makes `runs/podium/my`."""
    default_local_dir: str = ""
    """The run folder. Empty: `runs/<project_name>/<experiment_name>`."""
    runtime: Literal["auto", "local", "ray"] = "auto"
    """`local`: one process, no Ray. `ray`: Ray actors. Auto: local for one worker, Ray otherwise."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    nnodes: int = 1
    n_gpus_per_node: int = 1
    """Workers per node: one per GPU, or CPU processes where there is none."""
    seed: int = 1
    """Of all that is drawn: the order of rows, the samples, what functions of yours draw from random, numpy, torch."""
    total_epochs: int = 1
    total_training_steps: int | None = None
    """Overrides `total_epochs`."""
    critic_warmup: int = 0
    """Steps that train the critic alone."""
    val_before_train: bool = True
    test_freq: int = -1
    """Validate every so many steps, and after the last. -1: only after the last."""
    save_freq: int = -1
    """Save every so many steps, and after the last. -1: only after the last. 0: never."""
    resume_mode: str = "auto"
    """auto: the newest checkpoint if there is one; must: fail without one; disable: start anew; or a path."""
    async_save: bool = True
    """Write checkpoints beside the next steps; a step is held only while its state is copied."""
    max_ckpt_to_keep: int | None = None
    """Keep the newest so many checkpoints. Null: all."""
    best_metric: str | None = None
    """With `max_ckpt_to_keep`: also keep the checkpoint with the best value of this validation metric."""
    best_metric_mode: Literal["max", "min"] = "max"
    default_hdfs_dir: str = ""
    """Upload checkpoints there and resume from there: any URL of fsspec (hdfs, s3, gs, file, ...)."""
    max_restarts: int = 3
    """Restarts after dead or silent workers, without a newer checkpoint in between, before the run gives up."""
    heartbeat_s: float = 2.0
    """How often workers in other processes are asked whether they live."""
    stop_grace_s: float = 300.0
    """After SIGTERM or SIGINT: end within this time, saved or not. 0: take as long as it takes."""
    esi_redundant_time: float = 0.0
    """Seconds to spare when an instance that will be taken away is left."""
    max_flat_steps: int | None = None
    """Stop after so many steps in a row in which every group's rewards were equal. Null: never."""
    logging_freq: int = 1
    """Report every so many steps; the run folder always has all of them."""
    val_only: bool = False
    """Validate once and stop."""
    logger: list[Literal["console", "tensorboard", "wandb", "swanlab", "mlflow"]] = field(
        default_factory=lambda: ["console"]
    )
    """Readers of the run beside its folder."""
    log_val_generations: int = 4
    """Validation samples to show in the console."""
    log_token_samples: int = 32
    """Samples per step whose dump carries every token with its log-prob and advantage."""
    rollout_data_dir: str = ""
    """Where rollouts are dumped. Empty: `rollouts/` in the run folder."""
    validation_data_dir: str = ""
    """Where validation generations are dumped. Empty: `validation/` in the run folder."""
    balance_batch: bool = True
    """Spread the work over ranks by cost."""
    max_staleness: int = 0
    """Updates a sample may lag behind. 0: the synchronous loop."""
    max_skipped_updates: int = 10
    """Stop after so many non-finite updates in a row."""
    worker_timeout_s: float = 3600.0
    """The longest any call to a worker may take."""
    phase_timeout_s: dict[str, float] = field(default_factory=dict)
    """Shorter limits of single phases, by name: gen, old_log_prob, ref, values, update_actor, ..."""
    worker_start_timeout_s: float = 600.0
    """The longest workers may take to start."""
    ray_dashboard: bool = False
    """Start Ray with its own dashboard, on loopback. Needs `ray[default]`."""
    profile_steps: list[int] = field(default_factory=list)
    """Steps of which each worker leaves a torch profiler trace in `profile/` of the run folder."""
    micro_batch_size: int | None = None
    """Sets `micro_batch_size_per_gpu` of actor and critic."""
    gradient_accumulation_steps: int | None = None
    """With `micro_batch_size`: sets the mini-batch to accumulation × micro-batch × workers samples."""
