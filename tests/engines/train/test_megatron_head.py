"""A head whose vocabulary several ranks share, against the head of one; needs no Megatron."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_jobs import backward_of, head_case, shared_head
from rank_jobs import many, run_ranks

from podium.engines.train.logprobs import chunked_log_probs

CASES = [(97, 0.7), (4, 1.0)]
"""Of 97 tokens the last rank has fewer than the others; of 4 it has none."""


@pytest.mark.slow
def test_ranks_with_parts_of_the_vocabulary_say_what_one_says(tmp_path: Path) -> None:
    results: Any = run_ranks(many, 3, tmp_path, [(shared_head, case) for case in CASES])
    for number, (vocabulary, temperature) in enumerate(CASES):
        hidden, weight, labels = head_case(vocabulary)
        weight.requires_grad_()
        outputs = chunked_log_probs(
            hidden, weight, None, labels, temperature, with_entropy=True, with_sum_pi_squared=True
        )
        backward_of(outputs)
        ranks = [rank[number] for rank in results]
        for rank in ranks:
            for name, wanted in vars(outputs).items():
                torch.testing.assert_close(rank[name], wanted.detach(), atol=1e-10, rtol=0)
        torch.testing.assert_close(sum(rank["hidden"] for rank in ranks), hidden.grad, atol=1e-10, rtol=0)
        torch.testing.assert_close(torch.cat([rank["weight"] for rank in ranks]), weight.grad, atol=1e-10, rtol=0)
