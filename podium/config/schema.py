"""The configuration: one dataclass per part, one docstring per field.

This file says what can be set and what the default is. It does not say whether settings fit together (checks.py) nor
how files and `a.b=c` words become these objects (load.py). Defaults are resolved once, by load.py; nobody calls `.get`
with a default of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

ScheduleName = Literal["linear", "cosine", "sigmoid", "exp", "step"]
LossAggMode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@dataclass
class DataConfig:
    train_files: list[str] = field(default_factory=lambda: ["task:addition"])
    """Parquet or jsonl files, `datasets` folders, or built-in tasks as `task:<name>`."""
    val_files: list[str] = field(default_factory=list)
    """Validation files. Empty: the validation split of the built-in training tasks, or no validation."""
    train_batch_size: int = 64
    """Prompts per training step."""
    val_batch_size: int | None = None
    """Prompts per validation batch. Null: all at once."""
    max_prompt_length: int = 512
    """Tokens. What happens to a longer prompt is `overlong_prompts`."""
    max_response_length: int = 512
    """Tokens a response may have."""
    train_data_num: int | None = None
    """Use only this many training rows."""
    val_data_num: int | None = None
    """Use only this many validation rows."""
    shuffle: bool = True
    """Shuffle the training rows anew each epoch."""
    overlong_prompts: Literal["error", "drop", "truncate_left"] = "error"
    """What to do with a prompt past `max_prompt_length`."""
    prompt_key: str = "prompt"
    """The column that holds the prompt."""
    system_prompt: str | None = None
    """Put before every conversation that has no system message of its own."""
    max_bad_rows: int = 0
    """Rows that cannot be used go to `quarantine.jsonl` with the reason; more than this many stop the run."""
    sampler: str | None = None
    """Your own sampler, `module:Class` or `file.py:Class`; null: shuffled epochs."""
    mix_weights: dict[str, float] = field(default_factory=dict)
    """Draw from several `train_files` by weight, file name by file name; empty: all rows once per epoch."""
    cache_dir: str = ""
    """Where large parquet files are kept as Arrow files for memory mapping. Empty: `.podium_cache` beside the file."""


@dataclass
class ModelConfig:
    path: str = "builtin:tiny"
    """A Hugging Face folder, or `builtin:tiny`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute type. Auto: bfloat16 on a GPU, float32 on a CPU. Master weights are float32 either way."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model folder."""
    enable_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""


@dataclass
class OptimConfig:
    lr: float = 1e-6
    """Peak learning rate."""
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    """AdamW's decay rates."""
    weight_decay: float = 0.01
    """AdamW's decoupled weight decay."""
    lr_warmup_steps: int = 0
    """Optimizer steps until the peak is reached."""
    warmup_schedule: ScheduleName = "linear"
    """The shape of the warm-up."""
    lr_decay: Literal["constant", "cosine", "linear"] = "constant"
    """The shape after the warm-up."""
    min_lr_ratio: float = 0.0
    """The decay ends at this share of the peak."""


@dataclass
class FSDPConfig:
    fsdp_size: int = -1
    """Ranks that share one copy of the parameters. -1: all; fewer: hybrid sharding; 1: each rank has all of them."""
    param_offload: bool = False
    """Keep parameters in host memory while the engine rests."""
    optimizer_offload: bool = False
    """Keep the optimizer's state in host memory while the engine rests."""
    reshard_after_forward: bool = True
    """Free gathered parameters between forward and backward."""


@dataclass
class PolicyLossConfig:
    loss_mode: str = "vanilla"
    """A registered policy loss, or `module:function`."""
    tau_pos: float = 1.0
    """sapo: temperature for positive advantages."""
    tau_neg: float = 1.05
    """sapo: temperature for negative advantages."""
    clip_cov_ratio: float = 2e-4
    """clip_cov: share of tokens to exclude."""
    clip_cov_lb: float = 1.0
    """clip_cov: lower bound of the covariance band."""
    clip_cov_ub: float = 5.0
    """clip_cov: upper bound of the covariance band."""
    kl_cov_ratio: float = 2e-4
    """kl_cov: share of tokens to penalize."""
    ppo_kl_coef: float = 1.0
    """kl_cov: weight κ of the penalty."""
    dro_beta: float = 0.1
    """dro: weight β of the quadratic term."""


@dataclass
class ActorConfig:
    strategy: Literal["fsdp"] = "fsdp"
    """The train engine. `fsdp` is also the engine of a lone device."""
    ppo_epochs: int = 1
    """Passes over each batch of rollouts."""
    ppo_mini_batch_size: int | None = None
    """Prompts per optimizer step. Null: the whole batch (strictly on-policy with one epoch)."""
    max_tokens_per_micro_batch: int = 16384
    """Tokens a device takes at once; decides speed and memory, never the result."""
    micro_batch_size_per_gpu: int | None = None
    """Samples a device takes at once; overrides the token budget."""
    clip_ratio: float = 0.2
    """PPO's ε, both sides."""
    clip_ratio_low: float | None = None
    """ε below 1. Null: `clip_ratio`."""
    clip_ratio_high: float | None = None
    """ε above 1. Null: `clip_ratio`."""
    clip_ratio_c: float = 3.0
    """Dual clip: bound of the loss at negative advantages."""
    policy_loss: PolicyLossConfig = field(default_factory=PolicyLossConfig)
    loss_agg_mode: LossAggMode = "token-mean"
    """How token losses become one number."""
    use_kl_loss: bool = False
    """Add KL(π‖reference) to the loss."""
    kl_loss_coef: float = 0.001
    """Its weight."""
    kl_loss_type: str = "low_var_kl"
    """Its estimator: kl, abs, mse, low_var_kl (k1, k2, k3); a trailing + takes k2's gradient."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""
    grad_clip: float = 1.0
    """Largest gradient norm."""
    shuffle: bool = False
    """Visit the mini-batches in another order each epoch."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    fsdp: FSDPConfig = field(default_factory=FSDPConfig)


@dataclass
class ValSamplingConfig:
    do_sample: bool = False
    """False: greedy."""
    n: int = 1
    """Samples per validation prompt."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


@dataclass
class RolloutConfig:
    name: Literal["native", "hf"] = "native"
    """The rollout engine. `hf` is plain transformers `generate`: slow, for comparison."""
    n: int = 8
    """Samples per prompt: the group of GRPO and RLOO."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    """-1: off."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the likeliest. 0: off."""
    stop: list[str] = field(default_factory=list)
    """Strings that end a response."""
    max_num_seqs: int = 256
    """Sequences decoded at once."""
    max_num_batched_tokens: int = 8192
    """Tokens one forward pass may hold."""
    block_size: int = 16
    """Tokens per KV page."""
    gpu_memory_utilization: float = 0.5
    """Share of a GPU's memory the engine's KV cache may take."""
    kv_cache_gb: float = 2.0
    """Size limit of the KV cache on a CPU."""
    val_kwargs: ValSamplingConfig = field(default_factory=ValSamplingConfig)

    @property
    def is_unfiltered(self) -> bool:
        """Whether tokens are drawn from the policy itself; with filters, sampler and trainer differ by design."""
        return self.top_p == 1.0 and self.top_k == -1 and self.min_p == 0.0


@dataclass
class RefConfig:
    max_tokens_per_micro_batch: int | None = None
    """Null: the actor's."""


@dataclass
class ActorRolloutRefConfig:
    model: ModelConfig = field(default_factory=ModelConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    ref: RefConfig = field(default_factory=RefConfig)


@dataclass
class CriticConfig:
    enable: bool | None = None
    """Null: on when the advantage estimator needs values."""
    model: ModelConfig = field(default_factory=lambda: ModelConfig(path=""))
    """An empty path: the actor's."""
    ppo_epochs: int | None = None
    """Null: the actor's."""
    ppo_mini_batch_size: int | None = None
    """Prompts per optimizer step. Null: the actor's."""
    max_tokens_per_micro_batch: int | None = None
    """Null: the actor's."""
    micro_batch_size_per_gpu: int | None = None
    """Null: the actor's."""
    cliprange_value: float = 0.5
    """How far a value may move from its old one before the loss is clipped."""
    loss_agg_mode: LossAggMode = "token-mean"
    grad_clip: float = 1.0
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=1e-5))
    fsdp: FSDPConfig = field(default_factory=FSDPConfig)


@dataclass
class RewardModelConfig:
    enable: bool = False
    """Score responses with a reward model too."""
    model: ModelConfig = field(default_factory=lambda: ModelConfig(path=""))
    """What `podium train-reward` wrote, or a Hugging Face classifier with one label; it reads the policy's tokens."""
    weight: float = 1.0
    """A response's score is rule_weight · rule + weight · reward model."""
    rule_weight: float = 1.0
    """0: the reward model alone; the rule still scores the validation. Rows without a rule never have one."""
    max_tokens_per_micro_batch: int | None = None
    """Null: the actor's."""


@dataclass
class KLControlConfig:
    type: Literal["fixed", "adaptive"] = "fixed"
    kl_coef: float = 0.001
    """β at the start."""
    target_kl: float = 0.1
    """adaptive: the KL to hold."""
    horizon: int = 10000
    """adaptive: trajectories over which β adapts."""
    schedule: ScheduleName | None = None
    """fixed: raise β from 0 to `kl_coef` in this shape."""
    warmup_ratio: float = 0.1
    """With `schedule`: the share of training the rise takes."""


@dataclass
class RefQualityConfig:
    enable: bool = False
    """Blend the reference model's likelihood of a response into its reward."""
    max_weight: float = 0.3
    warmup_ratio: float = 0.7
    schedule: ScheduleName = "linear"
    steps: int = 3
    """schedule step: number of steps."""
    granularity: Literal["sequence", "token"] = "sequence"


@dataclass
class RefAlignmentConfig:
    enable: bool = True
    max_weight: float = 0.2
    warmup_ratio: float = 0.7
    schedule: ScheduleName = "sigmoid"
    steps: int = 3
    entropy_high_threshold: float = 0.2
    """Active on a step whose mean token entropy is above this."""


@dataclass
class ReprAlignConfig:
    enable: bool = False
    """Reward responses whose hidden states point where the ground truth's do, while the policy is uncertain."""
    ref_alignment: RefAlignmentConfig = field(default_factory=RefAlignmentConfig)


@dataclass
class FilterGroupsConfig:
    enable: bool = False
    """DAPO's dynamic sampling: drop groups whose rewards are all equal and sample again."""
    max_num_gen_batches: int = 10
    """Generation rounds before the step goes on with what it has."""


@dataclass
class OverlongBufferConfig:
    enable: bool = False
    """DAPO's soft penalty on responses near the length limit."""
    len: int = 64
    """Tokens before the limit over which the penalty rises."""
    penalty_factor: float = 1.0


@dataclass
class RolloutCorrectionConfig:
    mode: Literal["off", "token", "sequence"] = "off"
    """Importance weights for the gap between the sampler's and the trainer's log-probs."""
    truncate: Literal["clip", "mask"] = "clip"
    threshold: float = 2.0
    """C: weights above it are clipped, or tokens outside [1/C, C] masked."""
    reject_low: float | None = None
    """Drop sequences whose geometric-mean ratio is below this."""
    reject_high: float | None = None
    """Drop sequences whose geometric-mean ratio is above this."""


@dataclass
class AlgorithmConfig:
    adv_estimator: str = "grpo"
    """A registered advantage estimator, or `module:function`."""
    gamma: float = 1.0
    lam: float = 1.0
    norm_adv_by_std_in_grpo: bool = True
    """False: Dr. GRPO."""
    use_kl_in_reward: bool = False
    """Subtract β·KL(π‖reference) from the token rewards."""
    kl_penalty: str = "kl"
    """Its estimator, as `actor.kl_loss_type`."""
    kl_ctrl: KLControlConfig = field(default_factory=KLControlConfig)
    missing_eos_penalty: float | None = None
    """Subtracted from the score of a response without an end-of-sequence token."""
    whiten_rewards: bool = False
    """Scale token rewards to unit variance, keeping their mean."""
    reward_weights: dict[str, float] = field(default_factory=dict)
    """gdpo: weight of each reward part by name."""
    ref_quality_score: RefQualityConfig = field(default_factory=RefQualityConfig)
    repr_align: ReprAlignConfig = field(default_factory=ReprAlignConfig)
    filter_groups: FilterGroupsConfig = field(default_factory=FilterGroupsConfig)
    overlong_buffer: OverlongBufferConfig = field(default_factory=OverlongBufferConfig)
    rollout_correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)


@dataclass
class TrainerConfig:
    project_name: str = "podium"
    experiment_name: str = "quickstart"
    default_local_dir: str = ""
    """The run folder. Empty: `runs/<project_name>/<experiment_name>`."""
    runtime: Literal["auto", "local", "ray"] = "auto"
    """`local`: one process, no Ray. `ray`: Ray actors. Auto: local for one worker, Ray otherwise."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    nnodes: int = 1
    n_gpus_per_node: int = 1
    """Workers per node: one per GPU, or CPU processes where there is none."""
    seed: int = 1
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
    micro_batch_size: int | None = None
    """Sets `micro_batch_size_per_gpu` of actor and critic."""
    gradient_accumulation_steps: int | None = None
    """With `micro_batch_size`: sets the mini-batch to accumulation × micro-batch × workers samples."""


@dataclass
class RewardConfig:
    custom_reward_function: str | None = None
    """`path/to/file.py:function` or `module:function`; null: the built-in function of each row's `data_source`."""
    functions: dict[str, float] = field(default_factory=dict)
    """Several functions by weight: built-in names, `module:function`, `file.py:function`, http addresses; `default` is
    the function of each row's `data_source`. Overrides `custom_reward_function`."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the reward functions that take them."""
    num_processes: int = 4
    """Reward processes per rollout worker, for all but cheap built-in functions. 0: in the trainer, no limits."""
    timeout_s: float = 30.0
    """Seconds a function may take for a response, or for a call that scores several; then its process is killed."""
    http_retries: int = 3
    """Further attempts of a remote reward, all within `timeout_s`."""
    http_max_per_second: float = 0.0
    """Requests to a remote reward per second and rollout worker. 0: no limit."""
    max_failure_rate: float = 0.5
    """Stop when a larger share of a step's rewards failed."""


@dataclass
class Config:
    data: DataConfig = field(default_factory=DataConfig)
    actor_rollout_ref: ActorRolloutRefConfig = field(default_factory=ActorRolloutRefConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    extra: dict[str, Any] = field(default_factory=dict)
    """Free settings for your own functions; Podium carries them and reads none."""
