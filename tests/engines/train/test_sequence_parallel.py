"""Ranks that share sequences compute what one rank computes alone: scores, loss and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rank_jobs import many, run_ranks, ulysses
from transformers import Qwen2Config

from podium.config.schema import FSDPConfig
from podium.engines.train.sequence_parallel import SequenceParallel
from podium.engines.train.sharding import Ranks
from podium.errors import ConfigError
from podium.metric import merge_metrics

CASES: dict[int, list[tuple[list[int], int, dict[str, object], bool]]] = {
    2: [
        ([3, 5], 2, {}, False),
        ([8, 0], 2, {}, True),
        ([3, 5], 2, {"num_key_value_heads": 1}, False),  # fewer key-value heads than ranks
        ([3, 5], 2, {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48}, False),  # 3 do not divide
        ([3, 5], 2, {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}, False),
    ],
    4: [([2, 0, 1, 5], 2, {}, False), ([2, 2, 1, 3], 4, {}, False)],
}


@pytest.mark.parametrize("num_ranks", CASES)
def test_shared_sequences_give_the_numbers_of_one_rank(num_ranks: int, tmp_path: Path) -> None:
    cases = CASES[num_ranks]
    results: list[Any] = run_ranks(many, num_ranks, tmp_path, [(ulysses, case) for case in cases])
    for number, (_, _, shape, _) in enumerate(cases):
        alone: Any = ulysses([8], 1, shape, False)
        ranks = [rank[number] for rank in results]
        for name in ("log_probs", "entropys"):
            ours = torch.cat([rank["scores"][name] for rank in ranks])
            torch.testing.assert_close(ours, alone["scores"][name], atol=1e-4, rtol=0)
        for name in ("values", "hidden"):
            ours = torch.cat([rank[name] for rank in ranks])
            torch.testing.assert_close(ours, alone[name], atol=1e-4, rtol=0)
        merged = merge_metrics(rank["metrics"] for rank in ranks)
        for name in ("loss", "vf_loss", "grad_norm", "skipped_updates"):
            assert merged[name].result() == pytest.approx(alone["metrics"][name].result(), abs=1e-5), name
        assert merged["loss"].weight == alone["metrics"]["loss"].weight, "each row counts once"
        for rank in ranks:
            for kind in ("weights", "critic"):
                for name, tensor in alone[kind].items():
                    torch.testing.assert_close(rank[kind][name], tensor, atol=1e-5, rtol=0)


def test_a_size_that_does_not_fit_is_refused() -> None:
    alone, config = Ranks(torch.device("cpu")), Qwen2Config(num_attention_heads=4)
    with pytest.raises(ConfigError, match="is 2 with 1 ranks"):
        SequenceParallel(2, alone, config)
    alone.size = 6
    with pytest.raises(ConfigError, match="4 attention heads"):
        SequenceParallel(3, alone, config)
    assert FSDPConfig().ulysses_sequence_parallel_size == 1
