from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from podium.algorithms import get_policy_loss_fn, policy_loss_names
from podium.config.schema import ActorConfig, ModelConfig, OptimConfig, RolloutConfig
from podium.engines.train.torch import TorchEngine
from podium.models.load import load_causal_lm
from podium.protocol import DataProto, compute_position_ids
from podium.workers.actor import Actor


def make_rows(advantages: list[float]) -> DataProto:
    generator = torch.Generator().manual_seed(0)
    rows, prompt, width = len(advantages), 3, 5
    ids = torch.randint(10, 100, (rows, prompt + width), generator=generator)
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    response_mask = (torch.arange(width)[None] < lengths[:, None]).long()
    attention_mask = torch.cat([torch.ones(rows, prompt, dtype=torch.long), response_mask], 1)
    return DataProto.from_dict(
        {
            "prompts": ids[:, :prompt],
            "responses": ids[:, prompt:],
            "input_ids": ids,
            "attention_mask": attention_mask,
            "position_ids": compute_position_ids(attention_mask),
            "response_mask": response_mask,
            "rollout_log_probs": -torch.rand(rows, width, generator=generator) * response_mask,
            "old_log_probs": -torch.rand(rows, width, generator=generator) * response_mask,
            "advantages": torch.tensor(advantages)[:, None] * response_mask,
            "mini_batch": torch.zeros(rows, dtype=torch.long),
        },
        meta_info={"seed": 1, "num_mini_batches": 1},
    )


def make_actor(loss: str, model: Any, **settings: Any) -> Actor:
    config = ActorConfig(optim=OptimConfig(lr=1e-3, weight_decay=0.0), **settings)
    config.policy_loss.loss_mode = loss
    engine = TorchEngine(copy.deepcopy(model), optim=config.optim)
    return Actor(engine, config, RolloutConfig(), max_response_length=5)


@pytest.fixture(scope="module")
def model() -> Any:
    return load_causal_lm(ModelConfig())


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
@pytest.mark.parametrize("loss", [name for name in policy_loss_names() if get_policy_loss_fn(name).proportional])
def test_leaving_out_rows_without_advantage_changes_nothing(model: Any, loss: str, mode: str) -> None:
    rows = make_rows([1.0, 0.0, -1.0, 0.0, 0.5])
    short = make_actor(loss, model, loss_agg_mode=mode)
    whole = make_actor(loss, model, loss_agg_mode=mode)
    whole.policy_loss = copy.copy(whole.policy_loss)
    whole.policy_loss.proportional = False
    first, second = short.update(rows), whole.update(rows)
    for a, b in zip(short.engine.module.parameters(), whole.engine.module.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    assert first["actor/pg_loss"].result() == pytest.approx(second["actor/pg_loss"].result(), abs=1e-6)


def test_a_batch_without_any_advantage_leaves_the_weights(model: Any) -> None:
    actor = make_actor("vanilla", model)
    metrics = actor.update(make_rows([0.0, 0.0]))
    assert metrics["actor/grad_norm"].result() == 0
    pairs = zip(actor.engine.module.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_rows_without_advantage_stay_where_a_kl_or_entropy_term_needs_them(model: Any) -> None:
    actor = make_actor("vanilla", model, entropy_coeff=0.01)
    before = [p.clone() for p in model.parameters()]
    actor.update(make_rows([0.0, 0.0]))
    assert any(not torch.equal(a, b) for a, b in zip(actor.engine.module.parameters(), before, strict=True))
