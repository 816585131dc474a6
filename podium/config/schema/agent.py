"""Multi-turn episodes: what the model talks to between its turns, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class RetrieverConfig:
    url: str = ""
    """A retrieval server, such as http://host:8000/retrieve. Empty: each rollout worker searches `corpus` itself."""
    topk: int = 3
    """Documents a search returns. 0: every search finds nothing, to see what the retriever is worth."""
    corpus: str = ""
    """Without `url`: a jsonl file of documents, or task:search. Empty: the corpus of the built-in task trained on."""
    dense_model: str = ""
    """Without `url`: search by meaning, with this sentence-transformers folder. Empty: BM25."""
    timeout_s: float = 10.0
    """The longest one try of a request may take."""
    retries: int = 3
    """Further tries of a request, with growing pauses."""
    max_batch: int = 64
    """Queries of waiting episodes that go out in one request."""
    breaker_failures: int = 5
    """After so many failed requests in a row no more are sent for `breaker_s`; searches fail at once."""
    breaker_s: float = 30.0
    """How long the server is left alone then."""


@dataclass
class AgentConfig:
    environment: str = ""
    """An environment of yours, `module:Class` or `file.py:Class`. Empty: search, tools, or a single turn."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Constructor arguments of `environment`."""
    tools: list[str] = field(default_factory=list)
    """Functions the model may call: `module:function`, `file.py:function`, or python (an interpreter in a sandbox)."""
    mcp_servers: list[str] = field(default_factory=list)
    """MCP servers whose tools the model may call: an address, or a command that speaks MCP on its standard streams."""
    tool_timeout_s: float = 30.0
    """The longest a tool may take."""
    max_seconds: float | None = None
    """The longest an episode may take. Null: no limit."""
    max_tool_errors: int | None = None
    """An episode ends when more tool calls than this have failed. Null: no limit."""
    max_failure_rate: float = 0.5
    """Stop when a larger share of a step's episodes ended with an error of their environment."""
