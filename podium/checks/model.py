"""The models of a run: do they load, speak one vocabulary, and reach as far as the sequences?

Only configurations, tokenizers and a reward model's head are read; the other weights stay on the disk.
"""

from __future__ import annotations

from typing import Any

from podium.checks.findings import Findings, note, ok, problem
from podium.config.resolve import num_workers
from podium.config.schema import Config
from podium.engines.train.megatron_names import cut_for
from podium.errors import PodiumError
from podium.models.load import load_config, load_tokenizer
from podium.models.value import read_score_head

FOLDER_FIX = "give a Hugging Face folder with config.json, safetensors and a tokenizer, or builtin:tiny"
SCORER_FIX = "train one on the policy's own model: podium train-reward"


def read_model(config: Config) -> tuple[Any, Any, list[Any]]:
    """The policy's configuration and tokenizer (None where they cannot be read), and what was found on the way."""
    model, found = config.actor_rollout_ref.model, list[Any]()
    try:
        shape: Any = load_config(model.path, model.trust_remote_code)
        tokenizer: Any = load_tokenizer(model.path, model.trust_remote_code)
    except PodiumError as error:
        return None, None, [problem("model", f"actor_rollout_ref.model.path: {error}", FOLDER_FIX)]
    found += _check_policy(config, shape, tokenizer)
    found += _check_reward_model(config, tokenizer)
    return shape, tokenizer, found


def _check_policy(config: Config, shape: Any, tokenizer: Any) -> Findings:
    text = shape.get_text_config()
    reach, longest = getattr(text, "max_position_embeddings", None), _longest(config)
    if reach is not None and longest > reach:
        yield problem(
            "model",
            f"the model reaches {reach} tokens (max_position_embeddings), prompt and response may have {longest}",
            f"set data.max_response_length={max(1, reach - config.data.max_prompt_length)}, or a shorter prompt",
        )
    yield from _check_split(config, text)
    if len(tokenizer) > text.vocab_size:
        yield note("model", f"the tokenizer has {len(tokenizer)} tokens, the model {text.vocab_size}")
    kind = f"{type(shape).__name__.removesuffix('Config')}, {text.num_hidden_layers} layers of {text.hidden_size}"
    template = "a chat template" if tokenizer.chat_template else "no chat template: prompts go in as plain text"
    yield ok("model", f"{config.actor_rollout_ref.model.path}: {kind}; {template}")


def _check_split(config: Config, text: Any) -> Findings:
    """Whether the ranks can share the model with `strategy: megatron`."""
    actor = config.actor_rollout_ref.actor
    if actor.strategy != "megatron" or num_workers(config) == 1:
        return
    try:
        cut_for(text, 0, actor.megatron.tensor_model_parallel_size)
    except PodiumError as error:
        yield problem("model", str(error), "set another size, or actor_rollout_ref.actor.strategy=fsdp")


def _check_reward_model(config: Config, tokenizer: Any) -> Findings:
    settings = config.reward_model
    if not settings.enable:
        return
    try:
        theirs: Any = load_tokenizer(settings.model.path, settings.model.trust_remote_code)
        load_config(settings.model.path, settings.model.trust_remote_code)
    except PodiumError as error:
        yield problem("model", f"reward_model.model.path: {error}", SCORER_FIX)
        return
    try:
        read_score_head(settings.model)
    except PodiumError as error:
        yield problem("model", str(error), SCORER_FIX)
    if theirs.get_vocab() != tokenizer.get_vocab():
        yield problem(
            "model",
            f"the reward model {settings.model.path} has another vocabulary than the policy, whose tokens it reads",
            SCORER_FIX,
        )


def _longest(config: Config) -> int:
    return config.data.max_prompt_length + config.data.max_response_length
