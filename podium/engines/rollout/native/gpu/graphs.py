"""CUDA graphs by key: capture once, replay ever after, and count both.

All graphs share one memory pool. What a graph reads and writes must stay where it was at capture; `follow` drops all
graphs when it did not.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

WARM_UP_STEPS = 2


def bucket_of(num_rows: int) -> int:
    """The batch size of the graph that serves this many rows: powers of two, then steps that cost at most a quarter."""
    for limit, step in ((4, 1), (16, 4), (64, 16), (256, 32)):
        if num_rows <= limit:
            return -(-num_rows // step) * step
    return -(-num_rows // 64) * 64


@dataclass(frozen=True)
class Graph:
    graph: torch.cuda.CUDAGraph
    owner: Graphs

    def replay(self, times: int) -> None:
        for _ in range(times):
            self.graph.replay()
        self.owner.num_replays += times


@contextmanager
def _no_collection() -> Iterator[None]:
    """A graph that the garbage collector destroys during a capture would break it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Graphs:
    def __init__(self) -> None:
        self.num_captures = 0
        self.num_replays = 0
        self._graphs: dict[Hashable, Graph] = {}
        self._pool: Any = None
        self._places: Hashable = None
        self._side: torch.cuda.Stream | None = None

    def follow(self, places: Hashable) -> None:
        """`places`: where everything lies that graphs point to. Drop all of them when any of it has moved."""
        if places != self._places:
            self._graphs.clear()
            self._pool = None  # a pool dies with its last graph
            self._places = places

    def get(self, key: Hashable) -> Graph | None:
        return self._graphs.get(key)

    def capture(self, key: Hashable, step: Callable[[], None]) -> Graph:
        """Run `step` until everything it needs is compiled, then record it; the caller makes sure it has no effect."""
        side = self._side = self._side or torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP_STEPS):
                step()
        torch.cuda.current_stream().wait_stream(side)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side), _no_collection():
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                step()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(side)
        self.num_captures += 1
        self._graphs[key] = Graph(graph, self)
        return self._graphs[key]
