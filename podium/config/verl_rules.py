"""Rules for those of verl's settings (and Search-R1's) that have another name, unit or condition here.

A rule sees a value and all other values of the file. It gives settings, or why there are none, or both; nothing it is
given gets lost without a word. Which keys need a rule, and in what order they are asked, is for verl_keys.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard, get_args

from podium.config.names import leaves

ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))
DEFAULTS: dict[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "data.train_batch_size": 1024,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ROLLOUT}.n": 1,
    f"{ROLLOUT}.name": "vllm",
    "trainer.total_epochs": 30,
    "trainer.n_gpus_per_node": 8,
    "trainer.project_name": "verl_examples",
    "trainer.experiment_name": "gsm8k",
}
"""verl's defaults where Podium's differ: a script that leaves them out means these."""

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    settings: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    """Why the value, or a part of it, has no counterpart. Empty: all of it is in `settings`."""
    note: str = ""
    """What else to know about the settings."""


NOT_SET = Outcome()
"""verl's way to say that a number is not given; Podium's default holds."""
Rule = Callable[[Any, Values], Outcome]


def to(key: str) -> Rule:
    return lambda value, _: Outcome({key: value})


def to_positive(key: str) -> Rule:
    """verl writes -1 for a number that is not set."""
    return lambda value, _: NOT_SET if is_number(value) and value <= 0 else Outcome({key: value})


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole(values: Values, key: str, otherwise: int) -> int:
    """A positive whole number among the values."""
    value = values.get(key, DEFAULTS.get(key, otherwise))
    return value if isinstance(value, int) and value > 0 else otherwise


def choices(key: str) -> tuple[str, ...]:
    """What a setting of the schema may be: its Literal, or that of its items."""
    annotation = leaves()[key]
    return get_args(get_args(annotation)[0]) or get_args(annotation)


def overlong_prompts(value: Any, values: Values) -> Outcome:
    """verl filters before it truncates."""
    key = "data.overlong_prompts"
    if values.get("data.filter_overlong_prompts") is True:
        return Outcome({key: "drop"})
    truncation = values.get("data.truncation", "error")
    if truncation in ("left", "error"):
        return Outcome({key: "truncate_left" if truncation == "left" else "error"})
    if value != truncation:
        return NOT_SET  # the reason stands at data.truncation
    return Outcome(
        {key: "error"},
        f"a prompt is only ever cut at its left end; {key} is left at error, truncate_left and drop are the others",
    )


def micro_batch(role: str) -> Rule:
    def rule(value: Any, values: Values) -> Outcome:
        if values.get(f"{role}.use_dynamic_bsz") is True:
            return Outcome(reason="use_dynamic_bsz is on: the token budget counts, in verl too")
        return Outcome({f"{role}.micro_batch_size_per_gpu": value})

    return rule


def global_micro_batch(role: str) -> Rule:
    """verl's older key counts samples over all devices."""

    def rule(value: Any, values: Values) -> Outcome:
        if not is_number(value):
            return Outcome(reason=f"it is not a number; set {role}.micro_batch_size_per_gpu")
        devices = whole(values, "trainer.nnodes", 1) * whole(values, "trainer.n_gpus_per_node", 8)
        return micro_batch(role)(max(1, value // devices), values)

    return rule


def token_budget(role: str, switch: str = "use_dynamic_bsz") -> Rule:
    def rule(value: Any, values: Values) -> Outcome:
        if values.get(f"{role}.{switch}", values.get(f"{ACTOR}.use_dynamic_bsz")) is True:
            return Outcome({f"{role}.max_tokens_per_micro_batch": value})
        return Outcome(reason=f"{switch} is off: verl does not read it either")

    return rule


def dynamic_batches(role: str, default: int) -> Rule:
    """`default`: the budget verl takes when none is given."""

    def rule(value: Any, values: Values) -> Outcome:
        if value is True:
            budget = values.get(f"{role}.ppo_max_token_len_per_gpu") or default
            return Outcome({f"{role}.max_tokens_per_micro_batch": budget})
        if any(values.get(f"{role}.ppo_micro_batch_size{suffix}") for suffix in ("", "_per_gpu")):
            return NOT_SET  # rows are counted, as the micro-batch size says
        return Outcome(reason=f"a token budget is used unless {role}.micro_batch_size_per_gpu is set")

    return rule


def samples(value: Any, values: Values) -> Outcome:
    """Search-R1 repeats each prompt `n_agent` times, then samples `n` times."""
    if not is_number(value):
        return Outcome({f"{ROLLOUT}.n": value})
    return Outcome({f"{ROLLOUT}.n": whole(values, f"{ROLLOUT}.n", 1) * whole(values, f"{ROLLOUT}.n_agent", 1)})


def mini_batch(role: str) -> Rule:
    """verl counts prompts, as Podium does; Search-R1's `n_agent` samples of a prompt count one by one."""

    def rule(value: Any, values: Values) -> Outcome:
        copies = whole(values, f"{ROLLOUT}.n_agent", 1)
        key = f"{role}.ppo_mini_batch_size"
        if copies == 1 or not is_number(value):
            return Outcome({key: value})
        batch, prompts = whole(values, "data.train_batch_size", 1024), value / copies
        fitting = min((size for size in range(1, batch + 1) if batch % size == 0), key=lambda size: abs(size - prompts))
        note = f"{key} counts prompts here and samples in Search-R1: {value} samples are {prompts:g} prompts"
        if fitting != prompts:
            note += f", the nearest that divides a batch of {batch} is {fitting}"
        return Outcome({key: fitting}, note=note)

    return rule


def updates_per_step(role: str, values: Values) -> int:
    """Optimizer steps of a training step, counted as config/plan.py counts them."""
    epochs, mini = f"{role}.ppo_epochs", f"{role}.ppo_mini_batch_size"
    if values.get(epochs) is None:
        epochs = f"{ACTOR}.ppo_epochs"
    if values.get(mini) is None:
        mini = f"{ACTOR}.ppo_mini_batch_size"
    given = whole(values, mini, 256)
    size: int = mini_batch(role)(given, values).settings[f"{role}.ppo_mini_batch_size"]
    return max(1, whole(values, "data.train_batch_size", 1024) // size) * whole(values, epochs, 1)


def warmup(role: str) -> Rule:
    """verl's schedule moves once per training step, Podium's once per optimizer step. A number beats a ratio."""

    def rule(value: Any, values: Values) -> Outcome:
        if not is_number(value):
            return Outcome({f"{role}.optim.lr_warmup_steps": value})
        updates = updates_per_step(role, values)
        steps, ratio = (values.get(f"{role}.optim.{name}") for name in ("lr_warmup_steps", "lr_warmup_steps_ratio"))
        total = values.get("trainer.total_training_steps")
        if not (is_number(steps) and steps > 0):
            if not (is_number(ratio) and ratio > 0):
                return NOT_SET
            if not is_number(total):
                return Outcome(
                    reason=f"a share of a length the file does not say; set {role}.optim.lr_warmup_steps to "
                    f"{ratio:g} × training steps × {updates} (optimizer steps per training step)"
                )
            steps = int(ratio * total)
        note = f"{role}.optim.lr_warmup_steps counts optimizer steps: {steps} training steps × {updates}"
        return Outcome({f"{role}.optim.lr_warmup_steps": steps * updates}, note=note if updates > 1 else "")

    return rule


def strategy(value: Any, values: Values) -> Outcome:
    known = choices(f"{ACTOR}.strategy")
    name = "fsdp" if value == "fsdp2" else value
    if name in known:
        return Outcome({f"{ACTOR}.strategy": name})
    return Outcome(reason=f"there is no such train engine; there is {', '.join(known)}. The recipe takes {known[0]}")


def reward_function(prefix: str) -> Rule:
    def rule(value: Any, values: Values) -> Outcome:
        path, name = values.get(f"{prefix}.path"), values.get(f"{prefix}.name") or "compute_score"
        if not path:
            return Outcome(reason=f"there is no {prefix}.path that it would be the name in")
        return Outcome({"reward.custom_reward_function": f"{path}:{name}"})

    return rule


def resume(value: Any, values: Values) -> Outcome:
    path = values.get("trainer.resume_from_path")
    if value != "resume_path":
        return Outcome({"trainer.resume_mode": value})
    if path:
        return Outcome({"trainer.resume_mode": path})
    return Outcome(reason="the checkpoint's folder is missing; write trainer.resume_mode: <folder>")


def resume_path(value: Any, values: Values) -> Outcome:
    if values.get("trainer.resume_mode") == "resume_path":
        return Outcome({"trainer.resume_mode": value})
    return Outcome(reason="verl reads it with resume_mode=resume_path only; here it is trainer.resume_mode: <folder>")


def trackers(value: Any, values: Values) -> Outcome:
    known = choices("trainer.logger")
    names = value if isinstance(value, list) else [value]
    unknown = [str(name) for name in names if name not in known]
    reason = f"{', '.join(unknown)}: not here; there is {', '.join(known)}" if unknown else ""
    kept = [name for name in names if name in known]
    return Outcome({"trainer.logger": kept} if kept or not names else {}, reason)


def token_level_loss(value: Any, values: Values) -> Outcome:
    if value is True:
        return Outcome({f"{ACTOR}.loss_agg_mode": "token-mean"})
    return Outcome(reason=f"set {ACTOR}.loss_agg_mode")


def engine_argument(engine: str, name: str) -> Rule:
    """An argument of vLLM or SGLang by its own name."""

    def rule(value: Any, values: Values) -> Outcome:
        if values.get(f"{ROLLOUT}.name", DEFAULTS[f"{ROLLOUT}.name"]) == engine:
            return Outcome({f"{ROLLOUT}.engine_kwargs.{name}": value})
        return Outcome(reason=f"it is for {engine}, which {ROLLOUT}.name does not name")

    return rule
