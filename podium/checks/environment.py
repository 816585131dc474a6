"""What the model will talk to: an environment of the user's own, tools, a retriever."""

from __future__ import annotations

import urllib.request
from typing import Any
from urllib.error import URLError

from podium.checks.findings import Finding, Findings, ok, problem
from podium.config.schema import Config
from podium.errors import PodiumError

HEALTH_TIMEOUT_S = 3.0


def check_class(spec: str, kwargs: dict[str, Any] | None = None, tokenizer: Any = None) -> Findings:
    """Short episodes with the class `module:Class` or `file.py:Class`."""
    from podium.agents.check import check_environment

    levels = {"error": "problem", "warning": "note", "ok": "ok"}
    for found in check_environment(spec, kwargs, tokenizer=tokenizer):
        fix = "repair the class; podium/agents/environment.py has an example" if found.level == "error" else ""
        yield Finding("environment", levels[found.level], found.message, fix)  # type: ignore[arg-type]


def check_engine(config: Config) -> Findings:
    """vLLM and SGLang have a Python of their own; is it there, in a version that works?"""
    from podium.engines.rollout.external import PACKAGES, check_package

    rollout = config.actor_rollout_ref.rollout
    if rollout.name not in PACKAGES or rollout.url:
        return
    try:
        check_package(rollout.name, rollout.python)
    except PodiumError as error:
        said, _, fix = str(error).rpartition("; ")
        yield problem("engine", said or fix, fix)
    else:
        yield ok("engine", f"{rollout.name} is installed in {rollout.python or 'this environment'}")


def check_agents(config: Config, tokenizer: Any) -> Findings:
    if config.agent.environment:
        yield from check_class(config.agent.environment, dict(config.agent.kwargs), tokenizer)
    if config.do_search and config.retriever.url:
        yield _check_retriever(config.retriever.url)


def _check_retriever(url: str) -> Finding:
    address = f"{url.removesuffix('/').removesuffix('/retrieve')}/health"
    try:
        with urllib.request.urlopen(address, timeout=HEALTH_TIMEOUT_S) as answer:
            return ok("retriever", f"{url} answers: {answer.read(200).decode(errors='replace').strip()}")
    except (URLError, OSError, ValueError) as error:
        fix = "start it (podium retrieve --corpus docs.jsonl), or correct retriever.url"
        return problem("retriever", f"{address} does not answer: {error}", fix)
