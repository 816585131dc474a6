"""Samples that share a prompt give the numbers of separate sequences, from fewer tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from train_cases import FAMILIES, make_batch, make_model, make_plain, plain_scores, policy_loss, tokens

from podium.config.schema import OptimConfig
from podium.engines.train.forward import PackedModel
from podium.engines.train.micro_batches import MicroBatchLimits
from podium.engines.train.packing import pack, plain_pack
from podium.engines.train.shared_pack import shared_pack
from podium.engines.train.torch import TorchEngine
from podium.engines.train.units import make_units
from podium.models.shared_prompt import SharedPromptAttention
from podium.protocol import DataProto, compute_position_ids

CPU = torch.device("cpu")


def make_group(prompts: int, samples: int, *, prompt: int = 6, response: int = 9, seed: int = 0) -> DataProto:
    """Each prompt with several responses of different lengths."""
    batch = make_batch(prompts * samples, prompt=prompt, response=response, seed=seed)
    first = torch.arange(prompts).repeat_interleave(samples) * samples
    t = batch.tensors()
    shared_prompts, shared_mask = t["prompts"][first], t["attention_mask"][first, :prompt]
    attention_mask = torch.cat([shared_mask, t["attention_mask"][:, prompt:]], 1)
    return batch.put(
        prompts=shared_prompts,
        input_ids=torch.cat([shared_prompts, t["responses"]], 1),
        attention_mask=attention_mask,
        position_ids=compute_position_ids(attention_mask),
    )


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_scores_equal_plain_transformers_for_every_family(family: str) -> None:
    batch = make_group(3, 4)
    assert isinstance(pack(batch.batch, CPU).attention, SharedPromptAttention)
    wanted = plain_scores(make_plain(family), batch, 0.7)
    got = TorchEngine(make_model(family)).log_probs(batch, temperature=0.7, with_entropy=True, with_sum_pi_squared=True)
    for name, value in wanted.items():
        torch.testing.assert_close(got[name], value, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("lengths", [(6, 9), (50, 40)], ids=["explicit scores", "flash kernel"])
@pytest.mark.parametrize("window", [None, 4])
def test_gradients_equal_those_of_separate_sequences(lengths: tuple[int, int], window: int | None) -> None:
    batch = make_group(3, 4, prompt=lengths[0], response=lengths[1])
    settings = {"sliding_window": window} if window else {}
    model = PackedModel(make_model("mistral", **settings))
    gradients = []
    for make in (shared_pack, plain_pack):
        model.zero_grad()
        packed = make(batch.batch, CPU, False)
        assert packed is not None
        out = model(packed, with_entropy=True)
        ((out["log_probs"] - 0.1 * out["entropy"]) * batch.tensors()["weight"]).sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@settings(max_examples=40, deadline=None)
@given(prompts=st.integers(1, 4), samples=st.integers(1, 5), seed=st.integers(0, 99), own_hidden=st.booleans())
def test_a_shared_pack_predicts_the_same_tokens_from_the_same_places(
    prompts: int, samples: int, seed: int, own_hidden: bool
) -> None:
    batch = make_group(prompts, samples, seed=seed)
    packed = shared_pack(batch.batch, CPU, own_hidden)
    plain = plain_pack(batch.batch, CPU, own_hidden)
    if packed is None:
        return
    assert packed.input_ids.shape[1] < plain.input_ids.shape[1]
    for name in ("labels", "sources"):
        mine, theirs = getattr(packed, name), getattr(plain, name)
        if name == "sources":  # where they stand differs, what stands there does not
            mine, theirs = packed.position_ids[0, mine], plain.position_ids[0, theirs]
        assert torch.equal(packed.spread(mine.float()), plain.spread(theirs.float()))


@pytest.mark.parametrize("budget", [30, 100, 10_000])
def test_an_update_does_not_depend_on_how_groups_are_cut(budget: int) -> None:
    batch = make_group(4, 4)
    trained = []
    for limit, order in ((budget, torch.randperm(16)), (10_000, torch.arange(16))):
        engine = TorchEngine(make_model(), optim=OptimConfig(lr=1e-2), max_tokens_per_micro_batch=limit)
        engine.update(batch.select_idxs(order), policy_loss, tokens(batch))
        trained.append([p.detach().clone() for p in engine.module.parameters()])
    for a, b in zip(*trained, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_units_keep_a_prompts_rows_together_and_within_the_budget() -> None:
    batch = make_group(5, 6, seed=3)
    units = make_units(batch.batch, MicroBatchLimits(max_tokens=40), float)
    assert sorted(row for unit in units for row in unit.rows) == list(range(30))
    assert all(len(unit.rows) == 1 or unit.tokens <= 40 for unit in units)
    assert all(len({row // 6 for row in unit.rows}) == 1 for unit in units)
    whole = make_units(batch.batch, MicroBatchLimits(), float)
    assert len(whole) == 5
    assert all(len(unit.rows) == 1 for unit in make_units(batch.batch, MicroBatchLimits(max_rows=2), float))


def test_rows_of_different_prompts_stay_separate_sequences() -> None:
    assert shared_pack(make_batch(6, seed=1).batch, CPU, False) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_flash_kernel_agrees_on_a_gpu() -> None:
    batch = make_group(3, 4, prompt=40, response=30)
    wanted = plain_scores(make_plain("qwen2").cuda(), batch.to("cuda"))["log_probs"]
    engine = TorchEngine(make_model("qwen2").cuda(), dtype=torch.bfloat16, device="cuda")
    got = engine.log_probs(batch, temperature=1.0)["log_probs"]
    torch.testing.assert_close(got.cpu(), wanted.cpu(), atol=0.1, rtol=0.1)
