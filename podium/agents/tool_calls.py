"""Tool calls in a model's text, in the forms chat templates teach: found, parsed, and checked against the schema.

Three forms are read: `<tool_call>{"name", "arguments"}</tool_call>` (Qwen, Hermes and most others), a JSON list behind
`[TOOL_CALLS]` (Mistral), and a bare `{"name", "parameters"}` (Llama 3). A call that cannot be used is no exception but
a `BadCall`, whose reason the model gets to read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
MISTRAL = "[TOOL_CALLS]"
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class BadCall:
    reason: str


def parse_tool_calls(text: str) -> list[ToolCall | BadCall]:
    """The calls of a turn, in order; none when the text has none."""
    if "<tool_call>" in text:
        return [call for content in HERMES.findall(text) for call in _from_json(content)]
    if MISTRAL in text:
        return _from_json(text.partition(MISTRAL)[2])
    bare = text.replace("<|python_tag|>", "").strip()
    if bare.startswith("{") and bare.endswith("}") and '"name"' in bare:
        return _from_json(bare)
    return []


def _from_json(content: str) -> list[ToolCall | BadCall]:
    try:
        value = json.loads(content)
    except ValueError as error:
        return [BadCall(f"the call is not valid JSON ({error})")]
    return [_call(item) for item in (value if isinstance(value, list) else [value])]


def _call(value: Any) -> ToolCall | BadCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return BadCall("a call must be an object with 'name' and 'arguments'")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return BadCall(f"{value['name']}: the arguments are not valid JSON")
    if not isinstance(arguments, dict):
        return BadCall(f"{value['name']}: the arguments must be an object, not {type(arguments).__name__}")
    return ToolCall(value["name"], arguments)


def check_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str | None:
    """What is wrong with the arguments by a tool's JSON schema, or None."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    missing = [name for name in schema.get("required") or [] if name not in arguments]
    if missing:
        return f"the argument {missing[0]!r} is missing"
    if schema.get("additionalProperties") is not True:
        unknown = [name for name in arguments if name not in properties]
        if unknown:
            return f"there is no argument {unknown[0]!r}; known: {', '.join(properties) or 'none'}"
    problems = (_check_value(name, value, properties.get(name, {})) for name, value in arguments.items())
    return next((problem for problem in problems if problem), None)


def _check_value(name: str, value: Any, schema: Any) -> str | None:
    if not isinstance(schema, Mapping):
        return None
    kinds = schema.get("type")
    allowed: Sequence[str] = [kinds] if isinstance(kinds, str) else list(kinds or [])
    if schema.get("nullable"):
        allowed = [*allowed, "null"]
    if allowed and not any(_is(value, kind) for kind in allowed):
        return f"the argument {name!r} must be {' or '.join(allowed)}, not {type(value).__name__}"
    choices = schema.get("enum")
    if choices and value not in choices:
        return f"the argument {name!r} must be one of {', '.join(map(str, choices))}"
    if isinstance(value, list):
        inner = (_check_value(f"{name}[{place}]", item, schema.get("items")) for place, item in enumerate(value))
        return next((problem for problem in inner if problem), None)
    return None


def _is(value: Any, kind: str) -> bool:
    if kind not in TYPES:
        return True
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
