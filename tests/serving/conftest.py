"""The built-in model behind a server, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from podium.serving.generation import Generator
from podium.serving.server import Served, listen, load_generator, make_app

NAME = "tiny"


@pytest.fixture(scope="session")
def generator() -> Generator:
    return load_generator(Served(model="builtin:tiny", name=NAME, max_num_seqs=16, kv_cache_gb=0.05))


@pytest.fixture(scope="session")
def server_url(generator: Generator) -> Iterator[str]:
    listening = listen("127.0.0.1", 0, None)
    server = uvicorn.Server(
        uvicorn.Config(make_app(generator, "builtin:tiny", allow_updates=True), log_level="warning")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening.socket]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listening.url
    server.should_exit = True
    thread.join(300)
    assert not thread.is_alive()
