"""Tools: typed Python functions, an interpreter in a sandbox, and MCP servers, behind one environment.

The model sees the tools' schemas in its chat template's own format, calls them in that format, and reads the answers as
tool messages. A call that is malformed, does not fit the schema, raises or takes too long is answered with the reason;
a turn without a call is the final answer. A function that hangs keeps its thread until it returns, so give functions
that may hang a limit of their own; the interpreter and MCP servers have processes of their own.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from podium.agents.environment import EpisodeRow, Message, Observation
from podium.agents.tool_calls import BadCall, ToolCall, check_arguments, parse_tool_calls
from podium.config.schema import AgentConfig
from podium.engines.rollout.base import StopReason
from podium.errors import ConfigError
from podium.plugins import load_function, nearest
from podium.rewards.sandbox import SandboxLimits, run_python

MAX_AT_ONCE = 16
"""Tool calls of one worker that run at the same time."""
MAX_OUTPUT_CHARS = 8_000


@dataclass(frozen=True)
class Tool:
    name: str
    schema: dict[str, Any]
    """As the chat template takes it: {"type": "function", "function": {"name", "description", "parameters"}}."""
    call: Callable[[dict[str, Any]], Awaitable[Any]]

    @property
    def parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = self.schema["function"].get("parameters") or {}
        return parameters


class ToolEnvironments:
    """Episodes over one set of tools."""

    stop: tuple[str, ...] = ()
    scores = False

    def __init__(self, tools: Sequence[Tool], mcp_servers: Sequence[str] = (), timeout_s: float = 30.0) -> None:
        self._given, self._mcp_servers, self.timeout_s = list(tools), list(mcp_servers), timeout_s
        self.by_name: dict[str, Tool] = {}
        self.tools: list[dict[str, Any]] | None = []
        self._sessions: Any = None
        self._turn = asyncio.Semaphore(MAX_AT_ONCE)

    async def start(self) -> None:
        """Connect to the MCP servers and learn their tools."""
        found = list(self._given)
        if self._mcp_servers:
            from podium.agents.mcp_tools import McpSessions

            self._sessions = McpSessions(self._mcp_servers, self.timeout_s)
            found += await self._sessions.open()
        for tool in found:
            if tool.name in self.by_name:
                raise ConfigError(f"two tools are named {tool.name!r}; names must differ")
            self.by_name[tool.name] = tool
        self.tools = [tool.schema for tool in found]

    def make(self) -> ToolEnvironment:
        return ToolEnvironment(self)

    async def run(self, call: ToolCall | BadCall) -> tuple[str, bool]:
        """The answer to a call, and whether it went well."""
        if isinstance(call, BadCall):
            return f"Error: {call.reason}", False
        tool = self.by_name.get(call.name)
        if tool is None:
            return f"Error: there is no tool {call.name!r}{nearest(call.name, self.by_name)}", False
        problem = check_arguments(call.arguments, tool.parameters)
        if problem is not None:
            return f"Error: {call.name}: {problem}", False
        try:
            async with self._turn, asyncio.timeout(self.timeout_s):
                return as_text(await tool.call(call.arguments)), True
        except TimeoutError:
            return f"Error: {call.name} did not answer within {self.timeout_s:g} s", False
        except Exception as error:  # noqa: BLE001 (fault boundary: a tool; the model reads the reason)
            return f"Error: {call.name} failed: {type(error).__name__}: {error}", False

    async def close(self) -> None:
        if self._sessions is not None:
            await self._sessions.close()


class ToolEnvironment:
    """One conversation with tools."""

    def __init__(self, pool: ToolEnvironments) -> None:
        self._pool = pool

    async def reset(self, row: EpisodeRow) -> list[Message] | None:
        return None

    async def step(self, text: str, tokens: Sequence[int]) -> Observation:
        calls = parse_tool_calls(text)
        if not calls:
            return Observation(done=True, stop_reason=StopReason.ANSWERED)
        answers = await asyncio.gather(*(self._pool.run(call) for call in calls))
        failed = sum(not well for _, well in answers)
        malformed = any(isinstance(call, BadCall) for call in calls)
        return Observation(
            "\n".join(answer for answer, _ in answers),
            valid=not malformed,
            num_calls=sum(isinstance(call, ToolCall) for call in calls),
            num_errors=failed,
            role="tool",
        )

    async def last_step(self, text: str, tokens: Sequence[int]) -> Observation:
        """The turns are used up: no tool runs any more."""
        called = bool(parse_tool_calls(text))
        return Observation() if called else Observation(done=True, stop_reason=StopReason.ANSWERED)

    async def close(self) -> None:
        """The tools are shared and stay."""


def make_tool_environments(config: AgentConfig, tokenizer: Any) -> ToolEnvironments:
    if tokenizer.chat_template is None:
        raise ConfigError("tools need a chat template, and this tokenizer has none")
    tools = [python_tool(config.tool_timeout_s) if name == "python" else function_tool(name) for name in config.tools]
    return ToolEnvironments(tools, config.mcp_servers, config.tool_timeout_s)


def function_tool(function: str | Callable[..., Any]) -> Tool:
    """A typed function as a tool: its docstring says what it does, and what each argument is under `Args:`."""
    from transformers.utils.chat_template_utils import (
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    call = load_function(function, "agent.tools") if isinstance(function, str) else function
    try:
        schema: dict[str, Any] = get_json_schema(call)
    except (DocstringParsingException, TypeHintParsingException) as error:
        raise ConfigError(
            f"agent.tools {function!r} cannot be offered to a model: {error} Give every argument a type and a line "
            "under 'Args:' in the docstring"
        ) from error
    schema["function"].pop("return", None)

    async def run(arguments: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(call):
            return await call(**arguments)
        return await in_thread(lambda: call(**arguments))

    return Tool(schema["function"]["name"], schema, run)


def python_tool(timeout_s: float) -> Tool:
    """A Python interpreter: each call is a program of its own, in the sandbox."""
    limits = SandboxLimits(wall_s=timeout_s, cpu_s=max(1, round(timeout_s)), memory_mb=512)

    async def run(arguments: dict[str, Any]) -> str:
        result = await in_thread(lambda: run_python(str(arguments["code"]), limits=limits))
        if result.timed_out:
            raise TimeoutError
        if not result.ok:
            raise RuntimeError(result.stderr.strip()[-MAX_OUTPUT_CHARS:] or f"exit code {result.exit_code}")
        return result.stdout.strip() or "(no output; print what you want to see)"

    code = {"type": "string", "description": "A whole program; what it prints is the answer."}
    parameters = {"type": "object", "properties": {"code": code}, "required": ["code"]}
    about = "Runs Python with the standard library. Nothing is kept between calls."
    function = {"name": "python", "description": about, "parameters": parameters}
    return Tool("python", {"type": "function", "function": function}, run)


async def in_thread(work: Callable[[], Any]) -> Any:
    """Run blocking work in a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as raised:  # noqa: BLE001 (carried to the waiting coroutine)
            error = raised if isinstance(raised, Exception) else RuntimeError(f"{type(raised).__name__}: {raised}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="podium-tool", daemon=True).start()
    return await done


def as_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_OUTPUT_CHARS else f"{text[:MAX_OUTPUT_CHARS]} … ({len(text)} characters in all)"
