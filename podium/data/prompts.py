"""From a row's prompt to prompt tokens: messages, chat template, length policy.

A prompt is a list of {role, content} messages or a plain string. With a chat template a plain string is one user
message; a tokenizer without a template gets the plain text of a single message as it is. Tools that a row offers are
rendered by the template. This file knows neither files nor batches: a prompt it cannot use raises `PromptError`, and
the dataset says in which row. Prompts with images are images.py.
"""

from __future__ import annotations

import json
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
    if content is None and message.get("tool_calls"):
        content = ""  # a turn that only calls tools
    if not isinstance(role, str) or not (isinstance(content, str) or is_parts(content)):
        raise PromptError(f"a message needs role and content as text; found the keys {sorted(map(str, message))}")
    return {key: value for key, value in message.items() if value is not None} | {"content": content}


def is_parts(content: object) -> bool:
    """Whether a message's content is a list of texts and images."""
    parts = content if isinstance(content, Sequence) and not isinstance(content, str | bytes) else []
    return bool(parts) and all(isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in parts)


def is_unfinished(messages: Sequence[Message]) -> bool:
    """Whether the conversation ends with words of the assistant, which it is to continue."""
    return messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")


def read_tools(column: Any) -> list[dict[str, Any]] | None:
    """The schemas of the tools a row offers: a list of objects or that list as JSON text; None where it has none."""
    if column is None or (isinstance(column, Sequence) and not column):
        return None
    try:
        tools = json.loads(column) if isinstance(column, str) else list(column)
    except (TypeError, ValueError) as error:
        raise PromptError(f"tools is neither a list nor JSON text: {error}") from error
    tools = [json.loads(tool) if isinstance(tool, str) and tool.startswith("{") else tool for tool in tools]
    if not all(isinstance(tool, Mapping) for tool in tools):
        raise PromptError("tools must be a list of objects, each the schema of a tool")
    return [_without_nulls(tool) for tool in tools]


def _without_nulls(value: Any) -> Any:
    """Parquet gives every object of a column the keys of all the others, null where it had none."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list | tuple) else value


def encode_messages(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[Message],
    tools: list[dict[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[int]:
    """Prompt tokens, up to and with the words that open the assistant's turn; `options` are the template's own.

    A conversation that ends with an assistant message is continued from there.
    """
    if any(not isinstance(message["content"], str) for message in messages):
        messages = [message | {"content": _plain_text(message["content"])} for message in messages]
    if tokenizer.chat_template is None:
        if len(messages) > 1:
            raise PromptError("the tokenizer has no chat template and the prompt has several messages; add a template")
        if tools:
            raise PromptError("the row offers tools and the tokenizer has no chat template to show them in")
        return _encode(tokenizer, messages[0]["content"], add_special_tokens=True)
    if tools and "tools" not in str(tokenizer.chat_template):
        raise PromptError("the row offers tools and the chat template does not show any; use a model with a template")
    unfinished = is_unfinished(messages)
    try:
        text = tokenizer.apply_chat_template(
            messages,
            tools=tools,  # type: ignore[arg-type]
            add_generation_prompt=not unfinished,
            continue_final_message=unfinished,
            tokenize=False,
            **(options or {}),
        )
    except TemplateError as error:
        raise PromptError(f"the chat template refused the conversation: {error}") from error
    return _encode(tokenizer, str(text), add_special_tokens=False)


def _plain_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if any(part["type"] != "text" for part in content):
        raise PromptError("the prompt has images and the row's column `images` is empty")
    return "".join(str(part.get("text", "")) for part in content)


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
