"""From a row's prompt to prompt tokens: messages, chat template, length policy.

A prompt is a list of {role, content} messages or a plain string. With a chat template a plain string is one user
message; a tokenizer without a template gets the plain text of a single message as it is. This file knows neither files
nor batches: a prompt it cannot use raises `PromptError`, and the dataset says in which row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from jinja2.exceptions import TemplateError

from podium.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]
OverlongPolicy = Literal["error", "drop", "truncate_left"]


class PromptError(DataError):
    """A prompt cannot be used; the message is the reason alone."""


def build_messages(prompt: object, system_prompt: str | None = None) -> list[Message]:
    """The conversation to answer. `system_prompt` is put first unless there is a system message already."""
    if isinstance(prompt, str):
        messages: list[Message] = [{"role": "user", "content": prompt}]
    elif isinstance(prompt, Sequence):
        messages = [_checked_message(message) for message in prompt]
    else:
        raise PromptError(f"the prompt must be a string or a list of messages, not {type(prompt).__name__}")
    if not messages or not any(message["content"] for message in messages):
        raise PromptError("the prompt is empty")
    if system_prompt is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system_prompt})
    return messages


def _checked_message(message: object) -> Message:
    if not isinstance(message, Mapping):
        raise PromptError(f"a message must be {{role, content}}, not {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not isinstance(content, str):
        raise PromptError(f"a message needs role and content as text; found the keys {sorted(map(str, message))}")
    return {key: value for key, value in message.items() if value is not None}


def encode_messages(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> list[int]:
    """Prompt tokens, up to and with the words that open the assistant's turn.

    A conversation that ends with an assistant message is continued from there.
    """
    if tokenizer.chat_template is None:
        if len(messages) > 1:
            raise PromptError("the tokenizer has no chat template and the prompt has several messages; add a template")
        return _encode(tokenizer, messages[0]["content"], add_special_tokens=True)
    unfinished = messages[-1]["role"] == "assistant"
    try:
        text = tokenizer.apply_chat_template(
            messages, add_generation_prompt=not unfinished, continue_final_message=unfinished, tokenize=False
        )
    except TemplateError as error:
        raise PromptError(f"the chat template refused the conversation: {error}") from error
    return _encode(tokenizer, str(text), add_special_tokens=False)


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, add_special_tokens: bool) -> list[int]:
    tokens = [int(token) for token in tokenizer.encode(text, add_special_tokens=add_special_tokens)]
    if not tokens:
        raise PromptError(f"the tokenizer ({type(tokenizer).__name__}) makes no token of the prompt {text[:40]!r}")
    return tokens


def is_overlong(tokens: Sequence[int], max_prompt_length: int) -> bool:
    return len(tokens) > max_prompt_length


def fit_prompt(tokens: list[int], max_prompt_length: int, policy: OverlongPolicy) -> list[int] | None:
    """The tokens as they are when they fit; else by policy an error, None (drop the row), or the last ones."""
    if not is_overlong(tokens, max_prompt_length):
        return tokens
    match policy:
        case "truncate_left":
            return tokens[-max_prompt_length:]
        case "drop":
            return None
        case "error":
            raise PromptError(
                f"the prompt has {len(tokens)} tokens, data.max_prompt_length (or max_start_length) is "
                f"{max_prompt_length}; raise it or set data.overlong_prompts to drop or truncate_left"
            )
