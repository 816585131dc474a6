"""From a row's prompt to token ids: chat template, system prompt, length policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from podium.config.schema import DataConfig
from podium.errors import DataError

Message = Mapping[str, Any]


def to_messages(prompt: Any, system_prompt: str | None, where: str) -> list[dict[str, Any]]:
    """A conversation from a list of {role, content} or a plain string."""
    if isinstance(prompt, str):
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    elif isinstance(prompt, Sequence) and prompt and all(_is_message(message) for message in prompt):
        messages = [dict(message) for message in prompt]
    else:
        raise DataError(f"{where}: the prompt must be a string or a list of {{role, content}}, not {prompt!r:.100}")
    if system_prompt is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system_prompt})
    return messages


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("role"), str) and "content" in message


def encode_prompt(tokenizer: Any, messages: list[dict[str, Any]], where: str) -> list[int]:
    """Token ids up to where the model is to write. Without a chat template, the contents one below the other."""
    if tokenizer.chat_template is None:
        text = "\n".join(str(message["content"]) for message in messages)
        ids = tokenizer.encode(text)
    else:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer.encode(text, add_special_tokens=False)
    if not ids:
        raise DataError(f"{where}: the prompt has no tokens")
    return [int(i) for i in ids]


def fit_length(ids: list[int], config: DataConfig, where: str) -> list[int] | None:
    """The prompt within `max_prompt_length`, by `overlong_prompts`; None: dropped."""
    limit = config.max_prompt_length
    if len(ids) <= limit:
        return ids
    if config.overlong_prompts == "error":
        raise DataError(
            f"{where}: the prompt has {len(ids)} tokens, more than data.max_prompt_length={limit}; raise it, or set "
            "data.overlong_prompts to drop or truncate_left"
        )
    return ids[-limit:] if config.overlong_prompts == "truncate_left" else None
