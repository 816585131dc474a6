"""Keeping secrets out of what a run leaves behind: its saved configuration, events and error texts.

A setting whose name ends in api_key, token, secret, password or the like is a secret, and so is the login in a URL and
the value of an environment variable of such a name. What replaces them says so; a recipe that needs one names an
environment variable instead: `${oc.env:NAME}`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_NAME = re.compile(
    r"(^|_)((api|access|auth|account|private|secret)_?key(_id)?|token|secret|password|passwd|credentials?)$",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"(\w+://)[^/@\s]+@")
_MIN_LENGTH = 8  # shorter values would match innocent text


def is_secret_name(name: str) -> bool:
    return bool(_NAME.search(name))


def scrub(value: Any, name: str = "") -> Any:
    """The value with secrets replaced, inside mappings and lists too."""
    if isinstance(value, Mapping):
        return {key: scrub(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(scrub(item, name) for item in value)
    if isinstance(value, str) and value:
        return HIDDEN if is_secret_name(name) else _LOGIN.sub(rf"\1{HIDDEN}@", value)
    return value


def scrub_text(text: str, environ: Mapping[str, str] | None = None) -> str:
    """The text without logins in URLs and without the values of secret environment variables."""
    environ = os.environ if environ is None else environ
    for name, value in environ.items():
        if is_secret_name(name) and len(value) >= _MIN_LENGTH and value in text:
            text = text.replace(value, HIDDEN)
    return _LOGIN.sub(rf"\1{HIDDEN}@", text)
