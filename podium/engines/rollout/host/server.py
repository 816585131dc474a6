"""The engine's process: `python -m podium.engines.rollout.host.server FD`, started by rollout/process.py.

It reads its settings and then orders from the socket it was given, and ends, with every process it started, when that
socket closes: with the trainer's worker, however that comes. A beat every second says that the engine itself answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import shutil
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

from podium.engines.rollout.host.records import Ask, Backend, HostSettings

BEAT_S = 1.0
CLOSE_LIMIT_S = 5.0


def make_backend(settings: HostSettings) -> Backend:
    if ":" in settings.engine:
        module, _, name = settings.engine.partition(":")
        backend: Backend = getattr(importlib.import_module(module), name)(settings)
        return backend
    if settings.engine == "sglang":
        from podium.engines.rollout.host.sglang_backend import SGLangBackend

        return SGLangBackend(settings)
    from podium.engines.rollout.host.vllm_backend import VLLMBackend

    return VLLMBackend(settings)


class Server:
    """Orders in, results out, on one event loop."""

    def __init__(self, connection: Connection, settings: HostSettings) -> None:
        self.connection, self.settings = connection, settings
        self.orders: asyncio.Queue[tuple[Any, ...] | None] = asyncio.Queue()
        self.tasks: set[asyncio.Task[None]] = set()

    def say(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # the other side is gone: the reading thread sees it too
            self.connection.send(message)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), name="orders", daemon=True).start()
        self.backend = make_backend(self.settings)
        self.say("answer", 0, await self.backend.start())
        self._spawn(self._beat())
        while (order := await self.orders.get()) is not None:
            if order[0] == "submit":
                for ask in order[1]:
                    self._spawn(self._generate(ask))
            elif order[0] == "abort":
                self._spawn(self.backend.abort(order[1]))
            else:
                self._spawn(self._call(*order[1:]))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.backend.close(), CLOSE_LIMIT_S)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread of its own: the socket into the queue, its end included."""
        while True:
            try:
                order = self.connection.recv()
            except (EOFError, OSError):
                threading.Timer(2 * CLOSE_LIMIT_S, end_all, [self.settings.folder]).start()  # should the loop hang
                loop.call_soon_threadsafe(self.orders.put_nowait, None)
                return
            loop.call_soon_threadsafe(self.orders.put_nowait, order)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # not a request's own failure: the engine is gone, and the other side starts a new one
            traceback.print_exception(error)
            sys.stderr.flush()
            end_all()  # the other side reads what was written here

    async def _generate(self, ask: Ask) -> None:
        try:
            done = await self.backend.generate(ask)
        except ValueError as error:
            self.say("failed", ask.id, f"{type(error).__name__}: {error}")
        else:
            self.say("done", done)

    async def _call(self, call_id: int, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            value = await getattr(self.backend, method)(*arguments)
        except (ValueError, RuntimeError, NotImplementedError) as error:
            traceback.print_exception(error)
            self.say("error", call_id, f"{type(error).__name__}: {error}")
        else:
            self.say("answer", call_id, value)

    async def _beat(self) -> None:
        while True:
            await self.backend.check_alive()
            self.say("beat")
            await asyncio.sleep(BEAT_S)


def end_all(folder: str | None = None) -> None:
    """This process and all it started; it leads their group. The folder goes too when nobody else sees to it."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    settings: HostSettings = connection.recv()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then closes the socket
    try:
        asyncio.run(Server(connection, settings).run())
    except (ValueError, RuntimeError, ImportError, OSError, MemoryError) as error:
        traceback.print_exception(error)
        sys.stderr.flush()
        with contextlib.suppress(OSError):
            connection.send(("error", 0, f"{type(error).__name__}: {error}"))
        end_all()
    end_all(settings.folder)


if __name__ == "__main__":
    main()
