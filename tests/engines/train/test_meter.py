"""An update reports the share of the device's peak it reached, and the memory it took."""

from __future__ import annotations

import time

import pytest
import torch
from rank_jobs import lora_engine, make_engine
from torch.utils.flop_counter import FlopCounterMode
from train_cases import make_batch, make_model, policy_loss, tokens

from podium.config.schema import ModelConfig
from podium.engines.train.flops import FlopsEstimate, estimate_flops, reachable_flops
from podium.engines.train.meter import MFU, work_of
from podium.engines.train.units import make_units
from podium.models.lora import add_lora
from podium.protocol import DataProto
from podium.workers.optimization import full_names

CPU = torch.device("cpu")


def test_an_update_tells_its_share_of_the_peak_and_its_memory() -> None:
    engine, batch = make_engine(), make_batch(8)
    start = time.perf_counter()
    metrics = engine.update(batch, policy_loss, tokens(batch))
    seconds = time.perf_counter() - start
    lengths = batch.tensors()["attention_mask"].sum(-1).tolist()
    ideal = engine.flops.update(lengths, int(tokens(batch))) / reachable_flops(CPU)
    assert metrics[MFU].value == pytest.approx(ideal)
    assert 0 < metrics[MFU].weight <= seconds
    assert 0.05 < metrics["perf/cpu_memory_used_gb"].result() < 100
    named = full_names(metrics, "actor")
    assert {"perf/mfu/actor", "perf/cpu_memory_used_gb", "actor/grad_norm"} <= named.keys()


def test_a_shared_prompt_counts_once() -> None:
    batch = make_batch(1, prompt=6, response=9, seed=2)
    engine = make_engine()
    one, eight = (
        work_of(rows.tensors(), make_units(rows.tensors(), engine.limits, engine.flops.cost), engine.flops)
        for rows in (batch, DataProto.concat([batch] * 8))
    )
    prompt = int(batch.tensors()["attention_mask"][:, :6].sum())
    assert eight.tokens == 8 * one.tokens - 7 * prompt
    assert eight.head_tokens == 8 * one.head_tokens
    assert eight.pairs == pytest.approx(8 * one.pairs - 7 * prompt**2)


def test_frozen_weights_cost_no_gradients_of_their_own() -> None:
    estimate = FlopsEstimate(10, 100, 7, frozen_block_weights=8, frozen_head_weights=100)
    assert estimate.update([2, 3], head_tokens=1) == 3 * estimate.forward([2, 3], 1) - 2 * (8 * 5 + 100 * 1)


@pytest.mark.parametrize("kept", [[], ["embed_tokens"]])
def test_the_estimate_with_adapters_is_what_torch_counts(kept: list[str]) -> None:
    """Forward and backward of one row whose tokens are all scored but the first."""
    engine = lora_engine(modules_to_save=kept)
    batch = make_batch(1, prompt=1, response=60, seed=5)
    length = int(batch.tensors()["attention_mask"].sum())
    assert length > 8
    reachable_flops(CPU)  # measured once, outside the count
    with FlopCounterMode(display=False) as counter:
        engine.update(batch, policy_loss, tokens(batch))
    fed = length - 1  # the row's last token stays out of the model
    again = 2 * engine.flops.head_weights * fed  # the head computes its logits again in the backward pass
    upper = 3 * 2 * engine.flops.attention_width * fed**2  # torch counts the whole score matrix
    # not counted by one side: gradients of the first layer's input, sums in place
    assert engine.flops.update([fed]) + again + upper == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_adapters_leave_most_weights_frozen() -> None:
    plain = estimate_flops(make_model("llama"))
    module = make_model("llama")
    add_lora(module, ModelConfig(lora_rank=2))
    adapted = estimate_flops(module)
    assert adapted.frozen_block_weights == plain.block_weights
    assert adapted.frozen_head_weights == plain.head_weights == adapted.head_weights
    assert adapted.block_weights > plain.block_weights and plain.frozen_block_weights == 0
