"""PodiumTrainer: what PPOTrainer and GRPOTrainer share, onto the trainer that `podium train` runs.

They take what TRL's trainers take (models in memory or paths, a tokenizer, rows, rewards as functions or a classifier,
callbacks), write the models where workers can load them, and hand over to RayPPOTrainer. They contain no training.
Made for notebooks too: nothing starts before `train()` or `evaluate()`, an interrupt saves and comes back as
KeyboardInterrupt, and workers stay until `close()` so that the result can be evaluated and saved.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from podium.api.arguments import TrainingArguments
from podium.api.callbacks import CallbackList, TrainerControl, TrainerState
from podium.api.metrics import evaluation_metrics
from podium.api.models import as_folder, put_weights, trained_weights
from podium.api.optim import read_dict
from podium.api.rewards import FunctionScorer, Rewards
from podium.api.rows import RowsDataset
from podium.api.run import CallbackTrainer
from podium.api.settings import MODEL, Settings, Sizes, make_config
from podium.config.schema import Config
from podium.errors import ConfigError
from podium.models.load import load_tokenizer
from podium.rewards.manager import RewardManager
from podium.rewards.registry import check_sources
from podium.rewards.scorer import InlineScorer, RewardScorer
from podium.tracking import Sample
from podium.trainer.main_ppo import make_pools, resolve_device, role_workers, worker_group_class
from podium.trainer.stopping import RunStopped
from podium.trainer.validation import ValidationResult, validate


class TrainOutput(NamedTuple):
    global_step: int
    training_loss: float
    metrics: dict[str, float]


class PodiumTrainer:
    """What both doors share. Use PPOTrainer or GRPOTrainer."""

    def __init__(
        self,
        args: TrainingArguments,
        model: Any,
        tokenizer: Any,
        rewards: Rewards,
        train_dataset: Any,
        eval_dataset: Any,
        callbacks: Iterable[Any] | None,
        peft_config: Any,
    ) -> None:
        if train_dataset is None:
            raise ConfigError("train_dataset is missing; give a datasets.Dataset or a list of dicts")
        self.args, self.policy_model, self.rewards, self.peft_config = args, model, rewards, peft_config
        self.processing_class = tokenizer or load_tokenizer(_path_of(model), args.trust_remote_code)
        if self.processing_class.pad_token_id is None:
            self.processing_class.pad_token = self.processing_class.eos_token
        longest = int(args.max_prompt_length)  # type: ignore[attr-defined]  # both kinds of arguments have it
        self.template_options = read_dict("chat_template_kwargs", getattr(args, "chat_template_kwargs", None))
        self.train_dataset = self._rows(train_dataset, longest, "train")
        self.eval_dataset = None if eval_dataset is None else self._rows(eval_dataset, longest, "eval")
        self.callback_list = CallbackList(callbacks, args)
        self.sizes = Sizes(len(self.train_dataset), self.eval_dataset is not None)
        self.config: Config = make_config(args, self._settings())
        """Podium's configuration of this run; `config.yaml` in the run folder says the same."""
        self.trainer: CallbackTrainer | None = None
        """The trainer underneath, once something was started."""
        self._has_trained = False

    # ---- what a script calls

    def train(self, resume_from_checkpoint: bool | str | None = None) -> TrainOutput:
        """Train to the last step; the models that were given hold the trained weights afterwards."""
        if self._has_trained:
            raise ConfigError(
                "this trainer has trained; make a new one with the trained model to train on, or with "
                "more steps and train(resume_from_checkpoint=True) to go on with the run"
            )
        self._set_resume(self.args.resume_from_checkpoint if resume_from_checkpoint is None else resume_from_checkpoint)
        trainer = self._started()
        state = self.state
        state.max_steps = trainer.total_training_steps
        state.num_train_epochs = trainer.total_training_steps / max(1, len(trainer.train_sampler))
        self.callback_list.call("on_train_begin")
        try:
            trainer.fit()
        except RunStopped as stop:
            self.close()
            raise KeyboardInterrupt(f"{stop.reason}; train(resume_from_checkpoint=True) goes on from there") from None
        except BaseException:
            self.close()
            raise
        self._has_trained = True
        trainer.recorder.close()
        self._take_weights(trainer)
        self.callback_list.call("on_train_end")
        last = state.log_history[-1] if state.log_history else {}
        losses = [entry["loss/policy_avg"] for entry in state.log_history if "loss/policy_avg" in entry]
        return TrainOutput(state.global_step, sum(losses) / max(1, len(losses)), dict(last))

    def evaluate(self, eval_dataset: Any = None) -> dict[str, float]:
        """Answer the evaluation set with the weights as they are; `eval_score` is the mean score."""
        result = self._evaluate(eval_dataset)
        metrics = evaluation_metrics(result)
        self.state.log_history.append(metrics | {"step": float(self.state.global_step)})
        self.callback_list.call("on_evaluate", metrics=metrics)
        return metrics

    def generate_completions(self, sampling: bool = False) -> None:
        """Show what the model writes for the evaluation set; `sampling`: for the first few rows only."""
        samples = self._evaluate(None).samples
        _show_samples(samples[: self.args.per_device_eval_batch_size] if sampling else samples)

    def save_model(self, output_dir: str | None = None) -> None:
        """The policy as a Hugging Face folder, tokenizer included."""
        folder = Path(output_dir or self.config.trainer.default_local_dir)
        if self.trainer is None and isinstance(self.policy_model, str | Path):
            raise ConfigError("nothing was trained yet; call train() before save_model()")
        if isinstance(self.policy_model, str | Path):
            from transformers import AutoModelForCausalLM

            from podium.models.load import resolve_path

            self.policy_model = AutoModelForCausalLM.from_pretrained(resolve_path(str(self.policy_model)))
            assert self.trainer is not None
            put_weights(self.policy_model, trained_weights(self.trainer))
        self.policy_model.save_pretrained(folder)
        self.processing_class.save_pretrained(folder)

    def close(self) -> None:
        """End the workers. Afterwards the trainer can still save, but neither train nor evaluate."""
        if self.trainer is not None:
            self.trainer.shutdown()
            self.trainer = None

    def __enter__(self) -> PodiumTrainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_callback(self, callback: Any) -> None:
        self.callback_list.callbacks += CallbackList([callback], self.args).callbacks

    @property
    def state(self) -> TrainerState:
        return self.callback_list.state

    @property
    def control(self) -> TrainerControl:
        return self.callback_list.control

    # ---- from arguments to a trainer

    def _settings(self) -> Settings:
        raise NotImplementedError

    def _rows(self, rows: Any, longest: int, name: str) -> RowsDataset:
        return RowsDataset(rows, self.processing_class, longest, name, self.template_options)

    def _models(self) -> dict[str, tuple[Any, str]]:
        """Models to write beside policy and reward model: role -> (model, key of its path)."""
        return {}

    def _reward_settings(self) -> Settings:
        rewards = self.rewards
        settings: Settings = {"reward.functions": rewards.references} if rewards.references else {}
        if rewards.model is not None:
            settings |= {
                "reward_model.enable": True,
                "reward_model.weight": rewards.model_weight,
                "reward_model.rule_weight": 1.0 if rewards.has_rule else 0.0,
                "reward_model.model.path": _path_of(rewards.model),
            }
        return settings

    def _lora_settings(self) -> Settings:
        if self.peft_config is None:
            return {}
        lora = self.peft_config
        if str(getattr(lora.peft_type, "value", lora.peft_type)) != "LORA":
            raise ConfigError(f"peft_config is of type {lora.peft_type}; LoRA is what can be trained (peft.LoraConfig)")
        unused = {"use_dora": False, "use_rslora": False, "lora_bias": False, "bias": "none", "rank_pattern": {}}
        for name, plain in unused.items():
            if getattr(lora, name, plain) != plain:
                raise ConfigError(f"peft_config.{name}={getattr(lora, name)!r} is not supported; leave it at {plain!r}")
        targets = lora.target_modules
        return {
            f"{MODEL}.lora_rank": lora.r,
            f"{MODEL}.lora_alpha": float(lora.lora_alpha),
            f"{MODEL}.target_modules": [targets] if isinstance(targets, str) else sorted(targets or ["all-linear"]),
            f"{MODEL}.exclude_modules": sorted(_listed(lora.exclude_modules)),
            f"{MODEL}.modules_to_save": sorted(lora.modules_to_save or []),
        }

    def _set_resume(self, resume: bool | str | None) -> None:
        word = {None: "disable", False: "disable", "": "disable", True: "auto", "true": "auto", "True": "auto"}
        mode = word[resume] if resume in word else str(resume)
        self.config.trainer.resume_mode = mode

    def _started(self) -> CallbackTrainer:
        if self.trainer is None:
            if self._has_trained:
                raise ConfigError("this trainer is closed; make a new one")
            self._write_models()
            trainer = self._build()
            self.trainer = trainer
            try:
                trainer.init_workers()
                trainer.rollout_wg.publish(trainer.policy_version)
            except BaseException:
                self.close()
                raise
        return self.trainer

    def _write_models(self) -> None:
        folder, config = Path(self.config.trainer.default_local_dir) / "models", self.config
        config.actor_rollout_ref.model.path = as_folder(
            self.policy_model, self.processing_class, folder / "policy", "model"
        )
        config.actor_rollout_ref.ref.path = config.actor_rollout_ref.model.path
        config.critic.model.path = config.actor_rollout_ref.model.path
        if self.rewards.model is not None:
            config.reward_model.model.path = as_folder(
                self.rewards.model, self.processing_class, folder / "reward", "the reward model"
            )
        for role, (model, what) in self._models().items():
            path = as_folder(model, self.processing_class, folder / role, what)
            if role == "reference":
                config.actor_rollout_ref.ref.path = path
            else:
                config.critic.model.path = path

    def _build(self) -> CallbackTrainer:
        config, tokenizer = self.config, self.processing_class
        device = resolve_device(config.trainer.device)
        trainer = CallbackTrainer(
            config=config,
            tokenizer=tokenizer,
            role_worker_mapping=role_workers(config),
            resource_pool_manager=make_pools(config, device),
            ray_worker_group_cls=worker_group_class(config.trainer.runtime),
            reward_fn=self._reward_manager(),
            train_dataset=self.train_dataset,
            val_dataset=self.eval_dataset,
            device_name=device,
        )
        trainer.callbacks = self.callback_list
        return trainer

    def _reward_manager(self) -> RewardManager:
        rewards, config = self.rewards, self.config
        datasets = [self.train_dataset, *([self.eval_dataset] if self.eval_dataset else [])]
        sources = {str(dataset[row]["data_source"]) for dataset in datasets for row in _spread(len(dataset))}
        limit, has_model = config.reward.max_failure_rate, rewards.model is not None
        if rewards.functions:
            return RewardManager(self.processing_class, FunctionScorer(rewards.functions), limit, sources)
        if rewards.references:
            check_sources(config.reward, sources, has_model)
            return RewardManager(self.processing_class, RewardScorer(config.reward), limit, sources)
        return RewardManager(self.processing_class, InlineScorer(_no_rule), limit, sources, sources, reward_model=True)

    def _take_weights(self, trainer: CallbackTrainer) -> None:
        """Put the trained weights into the program's own models."""
        if not isinstance(self.policy_model, str | Path):
            put_weights(self.policy_model, trained_weights(trainer))

    def _evaluate(self, rows: Any) -> ValidationResult:
        trainer = self._started()
        given = trainer.val_dataset
        if rows is not None:
            longest = self.config.data.max_prompt_length
            trainer.val_dataset = self._rows(rows, longest, "eval")  # type: ignore[assignment]
        if trainer.val_dataset is None:
            raise ConfigError("there is no evaluation set; give the trainer an eval_dataset, or evaluate(eval_dataset)")
        try:
            generate, decode = trainer._generate_for_validation, trainer.tokenizer.decode
            return validate(trainer._val_batches(), generate, trainer._val_reward, decode)
        finally:
            trainer.val_dataset = given


def _path_of(model: Any) -> str:
    """The path given, or, for a model in memory, where it came from."""
    if isinstance(model, str | Path):
        return str(model)
    path = str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")
    return path or "builtin:tiny"


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def _spread(rows: int, looks: int = 16) -> range:
    return range(0, rows, max(1, rows // looks))


def _no_rule(*_: Any) -> float:
    raise AssertionError("a row of a run with a reward model alone has no rule")


def _show_samples(samples: list[Sample]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("prompt", "completion", "score", show_lines=True)
    for sample in samples:
        score = "-" if sample.score is None else f"{sample.score:.3f}"
        table.add_row(Text(sample.input), Text(sample.output), score)
    Console().print(table)
