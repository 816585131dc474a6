"""Tools of MCP servers, through the official `mcp` package (the `mcp` extra).

A server is an address (streamable HTTP) or a command whose standard streams speak MCP. One session per server serves
all episodes of a worker; it lives in a task of its own, because it must be closed where it was opened.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from typing import Any

from podium.agents.tools import Tool
from podium.errors import ConfigError

START_S = 30.0


class McpSessions:
    def __init__(self, servers: Sequence[str], timeout_s: float) -> None:
        self._servers, self._timeout_s = list(servers), timeout_s
        self._end = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> list[Tool]:
        """Connect to every server; the tools they offer."""
        try:
            import mcp
        except ImportError as error:
            raise ConfigError(f"agent.mcp_servers needs {error.name}: pip install 'podium[mcp]'") from error
        tools: list[Tool] = []
        for server in self._servers:
            ready: asyncio.Future[list[Tool]] = asyncio.get_running_loop().create_future()
            self._tasks.append(asyncio.create_task(self._hold(mcp, server, ready)))
            try:
                async with asyncio.timeout(START_S):
                    tools += await ready
            except TimeoutError as error:
                await self.close()
                raise ConfigError(f"the MCP server {server!r} did not answer within {START_S:g} s") from error
        return tools

    async def _hold(self, mcp: Any, server: str, ready: asyncio.Future[list[Tool]]) -> None:
        try:
            async with mcp.Client(_target(mcp, server), read_timeout_seconds=self._timeout_s) as client:
                offered = await client.list_tools()
                ready.set_result([_tool(client, each) for each in offered.tools])
                await self._end.wait()
        except Exception as error:  # noqa: BLE001 (fault boundary: told to whoever opens the session)
            if not ready.done():
                ready.set_exception(ConfigError(f"the MCP server {server!r} cannot be used: {_reason(error)}"))

    async def close(self) -> None:
        self._end.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _target(mcp: Any, server: str) -> Any:
    if server.startswith(("http://", "https://")):
        return server
    words = shlex.split(server)
    if not words:
        raise ConfigError("agent.mcp_servers has an empty entry; give an address or a command")
    return mcp.StdioServerParameters(command=words[0], args=words[1:])


def _tool(client: Any, offered: Any) -> Tool:
    parameters = dict(offered.input_schema)
    function = {"name": offered.name, "description": offered.description or "", "parameters": parameters}

    async def run(arguments: dict[str, Any]) -> str:
        result = await client.call_tool(offered.name, arguments)
        text = "\n".join(getattr(part, "text", f"({part.type})") for part in result.content)
        if result.is_error:
            raise RuntimeError(text or "the server gave no reason")
        return text

    return Tool(offered.name, {"type": "function", "function": function}, run)


def _reason(error: BaseException) -> str:
    """The first real error inside a group of them."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
