"""Functions as users might offer them to a model, and an MCP server."""

from __future__ import annotations

import asyncio
import time


def multiply(first: int, second: int) -> int:
    """Multiply two numbers.

    Args:
        first: One number.
        second: The other number.
    """
    return first * second


async def weather(town: str, unit: str = "celsius") -> dict[str, str]:
    """The weather of a town.

    Args:
        town: The town's name.
        unit: The unit. (choices: ["celsius", "kelvin"])
    """
    await asyncio.sleep(0)
    return {"town": town, "temperature": f"20 {unit}"}


def hang(seconds: int) -> str:
    """Take a while.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "done"


def fail(reason: str) -> str:
    """Raise.

    Args:
        reason: Why.
    """
    raise ValueError(reason)


def untyped(value):  # type: ignore[no-untyped-def]
    return value


def serve_mcp() -> None:
    from mcp.server import MCPServer

    server = MCPServer("numbers")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    def broken() -> str:
        """Never works."""
        raise RuntimeError("out of order")

    server.run()


if __name__ == "__main__":
    serve_mcp()
