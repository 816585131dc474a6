"""PPOConfig and GRPOConfig: the arguments a TRL script sets, under TRL's names and with TRL's defaults.

They are plain dataclasses (`HfArgumentParser` reads them) and change nothing by themselves: settings.py says what each
becomes in Podium's configuration. Arguments that TRL has and Podium does not act upon are in accepted.py; an argument
nobody knows is an error that names the nearest.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from podium.api.accepted import (
    UnusedGRPOArguments,
    UnusedPPOArguments,
    UnusedTrainingArguments,
    speak_of_unused,
)
from podium.errors import ConfigError
from podium.plugins import nearest

T = TypeVar("T")

RENAMED = {"evaluation_strategy": "eval_strategy", "no_cuda": "use_cpu"}
"""What transformers called arguments before."""


def forgiving(cls: type[T]) -> type[T]:
    """A dataclass whose `__init__` says what is wrong with an unknown argument."""
    plain = cls.__init__
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    used = [name for name, item in known.items() if not item.metadata]

    @functools.wraps(plain)
    def __init__(self: T, *args: Any, **given: Any) -> None:
        given = {RENAMED.get(name, name): value for name, value in given.items()}
        for name in given:
            if name not in known:
                raise ConfigError(f"{cls.__name__} has no argument {name!r}{nearest(name, used)}")
        plain(self, *args, **given)

    setattr(cls, "__init__", __init__)  # noqa: B010  (mypy refuses the plain assignment)
    return cls


@dataclass
class TrainingArguments(UnusedTrainingArguments):
    """What both trainers take: the part of transformers' TrainingArguments that means something here."""

    output_dir: str | None = None
    """The run folder: metrics, samples, checkpoints, and the model that `save_model()` writes. None: trainer_output."""
    run_name: str | None = None
    """The run's name for trackers. None: the folder's."""
    per_device_train_batch_size: int = 8
    """Samples a device takes through the model at once."""
    per_device_eval_batch_size: int = 8
    """Prompts per validation batch and device."""
    gradient_accumulation_steps: int = 1
    """Micro-batches per device and optimizer step."""
    num_train_epochs: float = 3.0
    max_steps: int = -1
    """Training steps; overrides the number of epochs or episodes. -1: not set."""
    learning_rate: float = 5e-5
    lr_scheduler_type: str = "linear"
    """linear, cosine, cosine_with_min_lr, constant or constant_with_warmup."""
    lr_scheduler_kwargs: dict[str, Any] | str | None = None
    """Of cosine_with_min_lr: `min_lr`, or `min_lr_rate`, a share of the peak."""
    warmup_steps: float = 0
    """Training steps until the peak learning rate; below 1: a share of them."""
    warmup_ratio: float | None = None
    """The share of training steps until the peak; an older word for `warmup_steps` below 1."""
    optim: str = "adamw_torch_fused"
    """adamw_torch(_fused), adamw_torch_8bit or _4bit (torchao), sgd, adagrad, rmsprop; others by `settings`."""
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    """The largest gradient norm, of the policy and of the value model. 0: no limit."""
    seed: int = 42
    train_sampling_strategy: str = "random"
    """random, or sequential to keep the order of the rows."""
    logging_steps: float = 10
    """Report to trackers every so many steps; below 1: a share of them. The run folder has all of them."""
    eval_strategy: str = "no"
    """no, steps or epoch: when the evaluation set is scored."""
    eval_steps: float | None = None
    """With eval_strategy=steps; None: `logging_steps`."""
    eval_on_start: bool = False
    """Score the evaluation set before the first step too."""
    save_strategy: str = "steps"
    """no, steps or epoch. A finished run is saved unless this is `no`."""
    save_steps: float = 500
    save_total_limit: int | None = None
    bf16: bool | None = None
    """Compute in bfloat16. None: on a GPU yes, on a CPU no. Master weights are float32."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass, of policy and value model."""
    torch_compile: bool = False
    """Compile the blocks of policy and value model."""
    report_to: str | None = "none"
    """none, wandb, swanlab, tensorboard or mlflow; several with commas between them."""
    project: str = "huggingface"
    """The project's name for trackers; as it is: podium."""
    use_cpu: bool = False
    trust_remote_code: bool = False
    resume_from_checkpoint: str | None = None
    """A checkpoint folder, or `true` for the newest one in output_dir."""
    nnodes: int = 1
    n_gpus_per_node: int = 1
    """Workers; more than one of them run on Ray."""
    settings: list[str] = field(default_factory=list)
    """Any of Podium's own settings, as on its command line: `["actor_rollout_ref.rollout.top_p=0.9"]`."""

    def __post_init__(self) -> None:
        speak_of_unused(self)

    @property
    def num_workers(self) -> int:
        return self.nnodes * self.n_gpus_per_node

    @property
    def batch_samples(self) -> int:
        """Samples per training step over all devices."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps * self.num_workers


@forgiving
@dataclass
class PPOConfig(TrainingArguments, UnusedPPOArguments):
    learning_rate: float = 3e-6
    num_ppo_epochs: int = 4
    """Passes over each batch."""
    num_mini_batches: int = 1
    """Optimizer steps per pass."""
    total_episodes: int | None = None
    """Samples in all. None: num_train_epochs times the rows."""
    local_rollout_forward_batch_size: int = 64
    """Sequences a device generates, or scores with the reference, at once."""
    num_sample_generations: int = 10
    """How often the evaluation set is answered and shown during the training. 0: never."""
    response_length: int = 53
    """Tokens of a response, at most."""
    stop_token: str | None = None
    """`eos`: a response ends at the end-of-sequence token. None: it has `response_length` tokens."""
    stop_token_id: int | None = None
    """Another token that ends a response; not together with `stop_token`."""
    temperature: float = 0.7
    missing_eos_penalty: float | None = None
    """Subtracted from the score of a response without an end-of-sequence token."""
    whiten_rewards: bool = False
    kl_coef: float = 0.05
    """The weight of the KL to the reference in the reward."""
    kl_estimator: str = "k1"
    """k1 or k3."""
    cliprange: float = 0.2
    vf_coef: float = 0.1
    """The weight of the value loss."""
    cliprange_value: float = 0.2
    gamma: float = 1.0
    lam: float = 0.95
    model_adapter_name: str | None = None
    """The adapter that is trained, when the policy has several."""
    ref_adapter_name: str | None = None
    """The adapter that is the reference; None: the policy without adapters."""
    max_prompt_length: int = 512
    """Tokens; a longer prompt keeps its last ones."""
    exp_name: str | None = None
    """The run's name where `run_name` is not set."""


@forgiving
@dataclass
class GRPOConfig(TrainingArguments, UnusedGRPOArguments):
    learning_rate: float = 1e-6
    model_init_kwargs: dict[str, Any] | str | None = None
    """For a model given by its path: `trust_remote_code`. Types and attention are Podium's matter."""
    num_generations: int = 8
    """Samples per prompt."""
    num_generations_eval: int | None = None
    """Samples per evaluation prompt, drawn as in training. None: one, greedy."""
    shuffle_dataset: bool = True
    chat_template_kwargs: dict[str, Any] | str | None = None
    """Further arguments of the chat template, such as `{"enable_thinking": False}`."""
    max_prompt_length: int = 512
    """Tokens; a longer prompt keeps its last ones."""
    max_completion_length: int = 512
    steps_per_generation: int | None = None
    """Micro-batches per generation. None: gradient_accumulation_steps, one optimizer step per generation."""
    generation_batch_size: int | None = None
    """Samples per generation; not together with `steps_per_generation`."""
    num_iterations: int = 1
    """Passes over each batch."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: off."""
    min_p: float | None = None
    beta: float = 0.0
    """The weight of the KL to the reference in the loss. 0: no reference is loaded."""
    use_bias_correction_kl: bool = True
    """Give that KL the gradient of the KL itself (our k3+). False: the gradient of its estimate (k3)."""
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    """The bound of the ratio at negative advantages. None: none."""
    loss_type: str = "dapo"
    """grpo, bnpo, dr_grpo, dapo, cispo or sapo."""
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    importance_sampling_level: str = "token"
    """token, or sequence for GSPO."""
    scale_rewards: str = "group"
    """group, or none for Dr. GRPO."""
    reward_weights: list[float] | None = None
    """The weight of each reward function. None: 1."""
    entropy_coef: float = 0.0
    log_completions: bool = False
    """Show some completions of each validation."""
    num_completions_to_print: int | None = None
    use_vllm: bool = False
    """Generate with vLLM."""
    vllm_gpu_memory_utilization: float = 0.3
    vllm_tensor_parallel_size: int = 1
    vllm_model_impl: str = "vllm"
    vllm_max_model_length: int | None = None
    vllm_importance_sampling_correction: bool = True
    """With vLLM: weigh samples for the gap between its log-probs and the trainer's."""
    vllm_importance_sampling_mode: str = "sequence_mask"
    """token or sequence, truncate or mask. Masked is what lies outside [1/C, C], C being the maximum."""
    vllm_importance_sampling_clip_max: float = 3.0
    vllm_importance_sampling_cap: float | None = None
    """An older word for the maximum."""
