"""The table of stopping rules on the device, as the host's StopRules has it.

Graphs read it where it lies, so it stays there; it moves only when the host's table has outgrown it, and says so.
"""

from __future__ import annotations

import numpy as np
import torch

from podium.engines.rollout.native.kv import to_device
from podium.engines.rollout.stopping import NUM_ROWS, StopRules


class RuleTable:
    def __init__(self, vocab_size: int, device: torch.device, num_rows: int = NUM_ROWS) -> None:
        self.device = device
        self.data = torch.zeros(num_rows, vocab_size, dtype=torch.int8, device=device)
        self._writes_seen = 0

    def follow(self, rules: StopRules) -> bool:
        """Take up the rows that were written since the last time; True when the table moved in memory.

        Passes under way read the rows as they were: the copy is behind them in the device's stream.
        """
        if rules.num_writes == self._writes_seen:
            return False
        moved = len(rules.table) > len(self.data)
        if moved:
            self.data = torch.zeros(rules.table.shape, dtype=torch.int8, device=self.device)
            self._writes_seen = 0
        rows = np.flatnonzero(rules.written_at > self._writes_seen)
        self.data.index_copy_(0, to_device(rows, self.device), to_device(rules.table[rows], self.device))
        self._writes_seen = rules.num_writes
        return moved
