"""verl's settings in Podium's words: which key becomes which, with what value, and why some have no counterpart.

A key that both have under one name and meaning is not listed. `translate` takes dotted keys and values and gives
settings and what was left behind; `advice` answers a single key of verl's on the command line. Neither reads a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from podium.config.names import ALIASES, free_keys, leaves, nearest
from podium.config.schema import Config
from podium.config.verl_reasons import reason_for
from podium.config.verl_rules import (
    ACTOR,
    DEFAULTS,
    MODEL,
    REF,
    ROLLOUT,
    Outcome,
    Rule,
    Values,
    dynamic_batches,
    engine_argument,
    global_micro_batch,
    micro_batch,
    mini_batch,
    overlong_prompts,
    resume,
    resume_path,
    reward_function,
    samples,
    strategy,
    to,
    to_positive,
    token_budget,
    token_level_loss,
    trackers,
    warmup,
)


@dataclass
class Translation:
    settings: dict[str, Any] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    """Keys without a counterpart, or with one for a part of their value only, and why."""
    notes: list[str] = field(default_factory=list)


RULES: dict[str, Rule] = {
    "data.truncation": overlong_prompts,
    "data.filter_overlong_prompts": overlong_prompts,
    "data.train_max_samples": to_positive("data.train_data_num"),
    "data.val_max_samples": to_positive("data.val_data_num"),
    "data.trust_remote_code": to(f"{MODEL}.trust_remote_code"),
    "data.seed": to("trainer.seed"),
    "data.shuffle_train_dataloader": to("data.shuffle"),
    f"{ACTOR}.strategy": strategy,
    f"{ACTOR}.use_token_level_loss": token_level_loss,
    f"{REF}.log_prob_max_token_len_per_gpu": token_budget(REF, "log_prob_use_dynamic_bsz"),
    f"{ROLLOUT}.n": samples,
    f"{ROLLOUT}.n_agent": samples,
    f"{ROLLOUT}.enforce_eager": engine_argument("vllm", "enforce_eager"),
    "trainer.resume_mode": resume,
    "trainer.resume_from_path": resume_path,
    "trainer.logger": trackers,
    "trainer.max_actor_ckpt_to_keep": to("trainer.max_ckpt_to_keep"),
}
for _role, _fsdp, _budget in (
    (ACTOR, f"{ACTOR}.fsdp_config", 16384),
    ("critic", "critic.model.fsdp_config", 32768),
):
    RULES |= {
        f"{_fsdp}.{name}": to(f"{_role}.fsdp.{name}")
        for name in (
            *("param_offload", "optimizer_offload", "fsdp_size", "reshard_after_forward", "forward_prefetch"),
            "ulysses_sequence_parallel_size",
        )
    }
    RULES |= {
        f"{_role}.ppo_mini_batch_size": mini_batch(_role),
        f"{_role}.ppo_micro_batch_size_per_gpu": micro_batch(_role),
        f"{_role}.ppo_micro_batch_size": global_micro_batch(_role),
        f"{_role}.ppo_max_token_len_per_gpu": token_budget(_role),
        f"{_role}.use_dynamic_bsz": dynamic_batches(_role, _budget),
        f"{_role}.optim.lr_warmup_steps": warmup(_role),
        f"{_role}.optim.lr_warmup_steps_ratio": warmup(_role),
        f"{_role}.optim.warmup_style": to(f"{_role}.optim.lr_decay"),
        f"{_role}.optim.lr_scheduler_type": to(f"{_role}.optim.lr_decay"),
    }
for _prefix in ("custom_reward_function", "reward.custom_reward_function"):
    RULES |= {f"{_prefix}.{name}": reward_function(_prefix) for name in ("path", "name")}
for _prefix in (
    *("reward_model.overlong_buffer", "custom_reward_function.overlong_buffer"),
    *("reward_model.reward_kwargs.overlong_buffer_cfg", "reward.reward_kwargs.overlong_buffer_cfg"),
):
    RULES |= {
        f"{_prefix}.{name}": to(f"algorithm.overlong_buffer.{name}") for name in ("enable", "len", "penalty_factor")
    }

MOVED = {
    "custom_reward_function.reward_kwargs.": "reward.kwargs.",
    "reward.custom_reward_function.reward_kwargs.": "reward.kwargs.",
}
"""Mappings of free names that have another place."""

SEARCH_R1 = (
    *("do_search", "max_turns", "retriever.url", "retriever.topk", f"{ROLLOUT}.n_agent", f"{ACTOR}.state_masking"),
    *("data.max_start_length", "data.max_obs_length", "data.shuffle_train_dataloader", "algorithm.no_think_rl"),
)
"""Keys that Search-R1 added to verl."""
SEARCH_R1_DEFAULTS: dict[str, Any] = {
    "do_search": True,
    "max_turns": 10,
    "retriever.url": "http://127.0.0.1:8000/retrieve",
    "data.max_start_length": 256,
    "data.max_obs_length": 512,
    f"{ACTOR}.state_masking": False,
    f"{ACTOR}.entropy_coeff": 0.001,
    f"{ROLLOUT}.top_p": 0.95,
}


def with_defaults(values: Values) -> dict[str, Any]:
    """With what a file that leaves it out means, where Podium's default is another."""
    defaults = dict(DEFAULTS)
    if any(key in values for key in SEARCH_R1):
        in_loss = values.get(f"{ACTOR}.use_kl_loss") is True  # if not there, Search-R1 takes KL from the reward
        defaults |= SEARCH_R1_DEFAULTS | {"algorithm.use_kl_in_reward": not in_loss}
    if values.get("reward_model.enable") is True:
        defaults["reward_model.rule_weight"] = 0.0  # verl takes the reward model's score instead of the rule's
    return defaults | {key: value for key, value in values.items() if value is not None or key not in defaults}


def translate(values: Values) -> Translation:
    """verl's dotted keys and values as settings, and what has no counterpart."""
    result = Translation()
    for key, value in values.items():
        if value is None or value == {}:
            continue  # not set: Podium's default holds
        outcome = _outcome(key, value, values)
        result.settings |= outcome.settings
        if outcome.reason:
            result.left[key] = outcome.reason
        if outcome.note and outcome.note not in result.notes:
            result.notes.append(outcome.note)
    return result


def _outcome(key: str, value: Any, values: Values) -> Outcome:
    if key in RULES:
        return RULES[key](value, values)
    for prefix, place in MOVED.items():
        if key.startswith(prefix):
            return Outcome({place + key.removeprefix(prefix): value})
    for engine in ("vllm", "sglang"):
        prefix = f"{ROLLOUT}.engine_kwargs.{engine}."
        if key.startswith(prefix):
            return engine_argument(engine, key.removeprefix(prefix))(value, values)
    name = ALIASES.get(key, key)
    if name in leaves() or any(name.startswith(f"{free}.") for free in free_keys()):
        return Outcome({name: value})
    return Outcome(reason=reason_for(key) or _unknown(key))


def _unknown(key: str) -> str:
    near = nearest(key)
    return f"unknown here; the nearest setting is {near[0]}" if near else "unknown here"


VERLS = "it is one of verl's"


def advice(key: str, values: Values) -> str | None:
    """What a key of verl's is called here, or why it is not needed; None for a key that verl does not have either.

    `values` are all settings of the command line or recipe, since some keys only have a meaning together.
    """
    bare = key.lstrip("+")
    given = _with_own_defaults({name.lstrip("+"): value for name, value in values.items()})
    known = bare in RULES or bare.startswith((*MOVED, f"{ROLLOUT}.engine_kwargs."))
    if not known:
        shortened = any(name.endswith(f".{bare}") for name in leaves())
        reason = None if shortened or "." not in bare else reason_for(bare)
        return None if reason is None else f"{VERLS}: {reason}"
    outcome = _outcome(bare, given.get(bare), given)
    if not outcome.settings:
        return f"{VERLS}: {outcome.reason or 'leave it out, its value there means that it is not set'}"
    words = " ".join(f"{name}={_word(value)}" for name, value in outcome.settings.items())
    return f"{VERLS}; here it is {words}{f' ({outcome.reason})' if outcome.reason else ''}"


def _with_own_defaults(values: Values) -> dict[str, Any]:
    """What is not given is as Podium has it, not verl."""
    own = Config()
    batch = values.get("data.train_batch_size", own.data.train_batch_size)
    return {
        "data.train_batch_size": batch,
        f"{ACTOR}.ppo_mini_batch_size": batch,
        f"{ROLLOUT}.name": own.actor_rollout_ref.rollout.name,
        "trainer.n_gpus_per_node": own.trainer.n_gpus_per_node,
        **values,
    }


def value_advice(key: str, values: Values) -> str:
    """For a key of both with a value of verl's: what to write here, as the end of a sentence; empty: nothing to say."""
    outcome = _outcome(key, values.get(key), values)
    here = outcome.settings.get(key)
    return "" if outcome.reason or here in (None, values.get(key)) else f"; verl's {values[key]} is {_word(here)} here"


def _word(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_word, value))}]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
