"""What `podium check` says about a model and the ranks that shall share it."""

from __future__ import annotations

from podium.checks.model import read_model
from podium.config import load_config

ACTOR = "actor_rollout_ref.actor"


def problems(*words: str) -> list[str]:
    config = load_config(None, ["trainer.n_gpus_per_node=4", f"{ACTOR}.strategy=megatron", *words])
    return [finding.text for finding in read_model(config)[2] if finding.level == "problem"]


def test_a_model_that_the_ranks_cannot_share_is_named_before_they_start() -> None:
    (text,) = problems(f"{ACTOR}.megatron.tensor_model_parallel_size=4")
    assert "tensor_model_parallel_size is 4, but the model has 2 key-value heads" in text
    assert not problems(f"{ACTOR}.megatron.tensor_model_parallel_size=2")
