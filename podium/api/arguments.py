"""PPOConfig and GRPOConfig: the arguments a TRL script sets, under TRL's names and with TRL's defaults.

They are plain dataclasses (`HfArgumentParser` reads them) and change nothing by themselves: settings.py says what each
becomes in Podium's configuration. An argument that TRL has and that means nothing here is accepted with a word about
why; an argument nobody knows is an error that names the nearest.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from podium.errors import ConfigError
from podium.plugins import nearest

logger = logging.getLogger(__name__)
T = TypeVar("T")

WITHOUT_EFFECT = {
    "dataloader_num_workers": "rows are read by the controller",
    "dataloader_pin_memory": "rows are read by the controller",
    "dataset_num_proc": "rows are read one by one, when they are drawn",
    "remove_unused_columns": "all columns stay and reach the reward functions",
    "ddp_find_unused_parameters": "the train engine is FSDP2",
    "ds3_gather_for_generation": "the rollout engine has whole weights",
    "disable_dropout": "dropout is always off",
    "disable_tqdm": "the console is set by settings=['trainer.logger=[]']",
    "gradient_checkpointing_kwargs": "checkpointing is never reentrant",
    "logging_first_step": "the run folder has every step",
    "logging_strategy": "the run folder has every step",
    "do_train": "trainer.train() trains",
    "do_eval": "trainer.evaluate() evaluates",
    "world_size": "computed from nnodes and n_gpus_per_node",
    "sft_model_path": "only the script reads it",
    "reward_model_path": "only the script reads it",
    "eval_accumulation_steps": "validation runs in one piece",
    "shuffle_dataset": "set settings=['data.shuffle=false'] to keep the order",
    "use_liger_kernel": "log-probs always come from a chunked head",
    "auto_find_batch_size": "micro-batches are what per_device_train_batch_size says",
    "overwrite_output_dir": "an earlier record in the folder is moved to previous/",
    "pad_to_multiple_of": "nothing is padded",
    "log_level": "use Python's logging",
}
"""TRL's and transformers' arguments that change nothing here, and why."""


def forgiving(cls: type[T]) -> type[T]:
    """A dataclass whose `__init__` says what is wrong with an unknown argument, and passes over WITHOUT_EFFECT."""
    plain = cls.__init__
    known = [item.name for item in fields(cls)]  # type: ignore[arg-type]

    @functools.wraps(plain)
    def __init__(self: T, *args: Any, **given: Any) -> None:
        for name in [name for name in given if name not in known]:
            if name not in WITHOUT_EFFECT:
                raise ConfigError(f"{cls.__name__} has no argument {name!r}{nearest(name, known)}")
            logger.info("%s(%s=...) has no effect: %s", cls.__name__, name, WITHOUT_EFFECT[name])
            del given[name]
        plain(self, *args, **given)

    setattr(cls, "__init__", __init__)  # noqa: B010  (mypy refuses the plain assignment)
    return cls


@dataclass
class TrainingArguments:
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
    """linear, cosine, constant or constant_with_warmup."""
    warmup_steps: float = 0
    """Training steps until the peak learning rate; below 1: a share of them."""
    warmup_ratio: float | None = None
    """The share of training steps until the peak; an older word for `warmup_steps` below 1."""
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    max_grad_norm: float = 1.0
    """The largest gradient norm, of the policy and of the value model. 0: no limit."""
    seed: int = 42
    logging_steps: float = 10
    """Report to trackers every so many steps; below 1: a share of them. The run folder has all of them."""
    eval_strategy: str = "no"
    """no, steps or epoch: when the evaluation set is scored."""
    eval_steps: float | None = None
    """With eval_strategy=steps; None: `logging_steps`."""
    save_strategy: str = "steps"
    """no, steps or epoch. A finished run is saved unless this is `no`."""
    save_steps: float = 500
    save_total_limit: int | None = None
    bf16: bool | None = None
    """Compute in bfloat16. None: on a GPU yes, on a CPU no. Master weights are float32."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass, of policy and value model."""
    report_to: str | None = "none"
    """none, wandb, swanlab, tensorboard or mlflow; several with commas between them."""
    use_cpu: bool = False
    trust_remote_code: bool = False
    resume_from_checkpoint: str | None = None
    """A checkpoint folder, or `true` for the newest one in output_dir."""
    push_to_hub: bool = False
    """Left to huggingface_hub: `trainer.save_model(folder)`, then `upload_folder`."""
    nnodes: int = 1
    n_gpus_per_node: int = 1
    """Workers; more than one of them run on Ray."""
    settings: list[str] = field(default_factory=list)
    """Any of Podium's own settings, as on its command line: `["actor_rollout_ref.rollout.top_p=0.9"]`."""

    @property
    def num_workers(self) -> int:
        return self.nnodes * self.n_gpus_per_node

    @property
    def batch_samples(self) -> int:
        """Samples per training step over all devices."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps * self.num_workers


@forgiving
@dataclass
class PPOConfig(TrainingArguments):
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


@forgiving
@dataclass
class GRPOConfig(TrainingArguments):
    learning_rate: float = 1e-6
    num_generations: int = 8
    """Samples per prompt."""
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
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    """The bound of the ratio at negative advantages. None: none."""
    loss_type: str = "dapo"
    """grpo, bnpo, dr_grpo, dapo, cispo or sapo."""
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
