"""Reference: the frozen policy that KL terms are measured against."""

from __future__ import annotations

from podium.engines.train.base import TrainEngine
from podium.protocol import DataProto


class Reference:
    def __init__(self, engine: TrainEngine, temperature: float) -> None:
        self.engine, self.temperature = engine, temperature

    def compute_ref_log_prob(self, data: DataProto) -> DataProto:
        with self.engine.reference():
            out = self.engine.log_probs(data, temperature=self.temperature)
        return DataProto.from_dict({"ref_log_prob": out["log_probs"]})
