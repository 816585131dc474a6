"""A small HTTP client for asyncio: POST JSON, read JSON, keep connections, give up in time.

One deadline covers connecting, sending and reading, so a server that drips bytes cannot hold a caller. It follows no
redirects and knows no proxies: it talks to a service of the user's own.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any
from urllib.parse import SplitResult, urlsplit

import h11

from podium.errors import ConfigError

MAX_BYTES = 256 << 20
READ = 1 << 16


class HttpFault(Exception):
    """The service gave no usable answer. `may_retry`: asking again could help."""

    def __init__(self, reason: str, may_retry: bool = True) -> None:
        super().__init__(reason)
        self.may_retry = may_retry


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.state = h11.Connection(h11.CLIENT)

    async def exchange(self, head: h11.Request, body: bytes) -> tuple[int, bytes]:
        for part in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.writer.write(self.state.send(part) or b"")
        await self.writer.drain()
        status, parts, size = 0, [], 0
        while True:
            event = self.state.next_event()
            if event is h11.NEED_DATA:
                self.state.receive_data(await self.reader.read(READ))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
                size += len(event.data)
                if size > MAX_BYTES:
                    raise HttpFault(f"the answer has more than {MAX_BYTES >> 20} MiB", may_retry=False)
            elif isinstance(event, h11.EndOfMessage):
                return status, b"".join(parts)
            elif isinstance(event, h11.ConnectionClosed):
                raise HttpFault("the connection was closed before an answer")

    def is_reusable(self) -> bool:
        if self.state.our_state is not h11.DONE or self.state.their_state is not h11.DONE:
            return False
        self.state.start_next_cycle()
        return True

    def close(self) -> None:
        self.writer.close()


class JsonClient:
    def __init__(self, address: str) -> None:
        parts: SplitResult = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{address!r} is no address; it must begin with http:// or https:// and name a host")
        self.address, self._parts = address, parts
        self._idle: list[_Connection] = []

    async def post(self, content: Any, timeout_s: float) -> Any:
        """The parsed answer; HttpFault with the reason otherwise."""
        body = json.dumps(content).encode()
        try:
            async with asyncio.timeout(timeout_s):
                status, answer = await self._send(body)
        except TimeoutError:
            raise HttpFault(f"no answer within {timeout_s:g} s") from None
        except (OSError, h11.ProtocolError) as error:
            raise HttpFault(f"{type(error).__name__}: {error}") from error
        if status != 200:
            reason = answer[:200].decode(errors="replace")
            raise HttpFault(f"HTTP {status}: {reason}", may_retry=status >= 500 or status == 429)
        try:
            return json.loads(answer)
        except ValueError as error:
            raise HttpFault(f"the answer is no JSON ({error})") from error

    async def _send(self, body: bytes) -> tuple[int, bytes]:
        path = self._parts.path or "/"
        target = f"{path}?{self._parts.query}" if self._parts.query else path
        headers = [("Host", self._parts.netloc.rpartition("@")[2]), ("Content-Type", "application/json")]
        head = h11.Request(method="POST", target=target, headers=[*headers, ("Content-Length", str(len(body)))])
        while self._idle:  # a server may have closed a connection that was kept; a fresh one decides
            connection = self._idle.pop()
            try:
                return await self._exchange(connection, head, body)
            except (OSError, HttpFault, h11.ProtocolError):
                continue
        return await self._exchange(await self._connect(), head, body)

    async def _exchange(self, connection: _Connection, head: h11.Request, body: bytes) -> tuple[int, bytes]:
        try:
            answer = await connection.exchange(head, body)
        except BaseException:
            connection.close()
            raise
        if connection.is_reusable():
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    async def _connect(self) -> _Connection:
        secure = self._parts.scheme == "https"
        port = self._parts.port or (443 if secure else 80)
        context = ssl.create_default_context() if secure else None
        return _Connection(*await asyncio.open_connection(self._parts.hostname, port, ssl=context))

    async def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
