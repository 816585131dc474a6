"""What the rollout engine reports is what the train engine computes: the ratio of the first update is 1."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from podium.config.schema import RolloutConfig
from podium.engines.rollout.base import SamplingParams
from podium.engines.rollout.native.engine import NativeEngine
from podium.engines.train.torch import TorchEngine
from podium.models.load import prepare
from podium.protocol import DataProto


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma3", "granite"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_log_probs_are_those_of_the_train_engine(
    family: str, temperature: float, make_lm: Any, random_prompts: Any
) -> None:
    model = make_lm(family)
    prepare(model)
    trainer = TorchEngine(model)
    engine = NativeEngine(model, RolloutConfig(max_num_seqs=16, kv_cache_gb=0.01))
    prompts = random_prompts(10, longest=20, seed=6)
    groups = engine.generate(prompts, SamplingParams(max_tokens=14, temperature=temperature), n=2)
    rows = [(prompt, completion) for prompt, group in zip(prompts, groups, strict=True) for completion in group]
    width, longest = max(map(len, prompts)), max(len(c.token_ids) for _, c in rows)
    ids = torch.zeros(len(rows), width + longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, (prompt, completion) in enumerate(rows):
        text = slice(width - len(prompt), width + len(completion.token_ids))
        ids[i, text] = torch.tensor(prompt + completion.token_ids)
        mask[i, text] = 1
    columns = {"prompts": ids[:, :width], "responses": ids[:, width:], "input_ids": ids, "attention_mask": mask}
    columns |= {"position_ids": (mask.cumsum(1) - 1).clamp(min=0), "response_mask": mask[:, width:]}
    scored = trainer.log_probs(DataProto.from_dict(columns), temperature=temperature)["log_probs"]
    for i, (_, completion) in enumerate(rows):
        ours = torch.tensor(completion.log_probs)
        torch.testing.assert_close(ours, scored[i, : len(ours)], atol=1e-4, rtol=0)
