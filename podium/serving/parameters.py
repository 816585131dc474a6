"""Requests in OpenAI's and SGLang's words, as sampling parameters. What cannot be honoured is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from podium.engines.rollout.base import SamplingParams
from podium.errors import ConfigError

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for plain completions."""

NEUTRAL = {
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "frequency_penalty": (None, 0, 0.0),
    "presence_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "logit_bias": (None, {}),
    "tools": (None, []),
    "functions": (None, []),
    "response_format": (None, {"type": "text"}),
}
"""Settings that the engine does not have, with the values that mean nothing."""


class BadRequest(Exception):
    """The asker's mistake; `field` is the setting it is about."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Asked:
    """One request in our own words."""

    params: SamplingParams
    n: int
    seed: int | None
    stream: bool
    log_probs: bool
    with_usage: bool


def read_openai(body: dict[str, Any], room: int, is_chat: bool) -> Asked:
    """`room`: tokens that fit behind the prompt."""
    for name, neutral in NEUTRAL.items():
        if body.get(name) not in neutral:
            raise BadRequest(f"{name} is not supported; leave it out", name)
    if is_chat and body.get("top_logprobs"):
        raise BadRequest(
            "top_logprobs is not supported; logprobs=true gives those of the sampled tokens", "top_logprobs"
        )
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is None:
        limit = room if is_chat else min(DEFAULT_MAX_TOKENS, room)
    stop = body.get("stop") or ()
    given = {
        "max_tokens": _whole(limit, "max_tokens"),
        "temperature": _number(body, "temperature", 1.0),
        "top_p": _number(body, "top_p", 1.0),
        "top_k": _whole(body.get("top_k") or -1, "top_k"),
        "min_p": _number(body, "min_p", 0.0),
        "stop": (stop,) if isinstance(stop, str) else tuple(stop),
        "stop_token_ids": tuple(body.get("stop_token_ids") or ()),
        "ignore_eos": bool(body.get("ignore_eos")),
    }
    wanted = body.get("logprobs")
    return Asked(
        params=_params(given),
        n=_whole(body.get("n") or 1, "n"),
        seed=body.get("seed"),
        stream=bool(body.get("stream")),
        log_probs=bool(wanted) if is_chat else wanted is not None and wanted is not False,
        with_usage=bool((body.get("stream_options") or {}).get("include_usage")),
    )


def read_sglang(body: dict[str, Any]) -> Asked:
    """The `sampling_params` of `/generate`."""
    given = body.get("sampling_params") or {}
    stop = given.get("stop") or ()
    params = {
        "max_tokens": _whole(given.get("max_new_tokens", 128), "max_new_tokens"),
        "temperature": _number(given, "temperature", 1.0),
        "top_p": _number(given, "top_p", 1.0),
        "top_k": _whole(given.get("top_k") or -1, "top_k"),
        "min_p": _number(given, "min_p", 0.0),
        "stop": (stop,) if isinstance(stop, str) else tuple(stop),
        "stop_token_ids": tuple(given.get("stop_token_ids") or ()),
        "ignore_eos": bool(given.get("ignore_eos")),
    }
    seed = given.get("sampling_seed")
    n = _whole(given.get("n") or 1, "n")
    return Asked(_params(params), n, seed, bool(body.get("stream")), bool(body.get("return_logprob")), False)


def _params(given: dict[str, Any]) -> SamplingParams:
    try:
        return SamplingParams(**given)
    except ConfigError as error:
        raise BadRequest(str(error).removeprefix("SamplingParams.")) from error


def _whole(value: Any, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"{field} must be a whole number, got {value!r}", field)
    return value


def _number(body: dict[str, Any], field: str, default: float) -> float:
    value = body.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{field} must be a number, got {value!r}", field)
    return float(value)
