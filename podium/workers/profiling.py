"""Profiled: a worker that can leave a trace of what it does, by torch's profiler.

Between `start_profile` and `stop_profile` the operators of the worker's thread, and all kernels of its GPU, are
recorded and then written as a Chrome trace (chrome://tracing, ui.perfetto.dev). Roles that share the process are in the
same trace. Recording costs time and memory with every operator, so it is for single steps.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from podium.single_controller.dispatch import Dispatch, register
from podium.single_controller.worker import Worker


class Profiled(Worker):
    _profile: profile | None = None

    @register(Dispatch.ONE_TO_ALL)
    def start_profile(self) -> None:
        """Record from here on."""
        cuda = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self._profile = profile(activities=[ProfilerActivity.CPU, *cuda])
        self._profile.start()

    @register(Dispatch.ONE_TO_ALL)
    def stop_profile(self, folder: str, step: int) -> str:
        """Write what was recorded since `start_profile`; the file."""
        assert self._profile is not None, "start_profile comes first"
        recorded, self._profile = self._profile, None
        recorded.stop()
        path = Path(folder) / f"step_{step}_{self.role}_rank_{self.rank}.json.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        recorded.export_chrome_trace(str(path))
        return str(path)
