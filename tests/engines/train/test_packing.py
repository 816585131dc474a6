"""A pack holds exactly the real tokens and puts every prediction back where it belongs."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from train_cases import make_batch

from podium.engines.train.packing import empty_pack, pack, plain_pack, row_lengths

CPU = torch.device("cpu")


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 8), prompt=st.integers(1, 5), response=st.integers(1, 6), seed=st.integers(0, 99))
def test_a_pack_feeds_each_rows_tokens_and_predicts_its_responses(
    rows: int, prompt: int, response: int, seed: int
) -> None:
    batch = make_batch(rows, prompt=prompt, response=response, seed=seed)
    t = batch.tensors()
    packed = plain_pack(batch.batch, CPU, own_hidden=False)
    real = [ids[mask.bool()].tolist() for ids, mask in zip(t["input_ids"], t["attention_mask"], strict=True)]
    fed = (
        [piece.tolist() for piece in packed.input_ids[0].split(packed.attention.lengths)]
        if any(len(ids) > 1 for ids in real)
        else []
    )
    assert sorted(fed) == sorted(ids[:-1] for ids in real if len(ids) > 1)
    assert packed.attention.lengths == sorted(packed.attention.lengths)
    # a stand-in for the model that knows the next token: what comes back must be the responses
    assert torch.equal(packed.spread(packed.labels.float()).long(), t["responses"] * t["response_mask"])
    place = packed.position_ids[0, packed.sources]
    wanted = (t["position_ids"][:, prompt:] - 1) * t["response_mask"]
    assert torch.equal(packed.spread(place.float()).long(), wanted)


def test_with_its_own_hidden_state_a_tokens_source_is_itself() -> None:
    batch = make_batch(5)
    t = batch.tensors()
    packed = plain_pack(batch.batch, CPU, own_hidden=True)
    assert sum(packed.attention.lengths) == int(t["attention_mask"].sum())
    ids = packed.input_ids[0, packed.sources]
    assert torch.equal(packed.spread(ids.float()).long(), t["responses"] * t["response_mask"])


def test_the_mean_per_row_counts_weighted_tokens_only() -> None:
    batch = make_batch(5, seed=2)
    t = batch.tensors()
    packed = plain_pack(batch.batch, CPU, own_hidden=True)
    features = packed.labels.float()[:, None]
    weights = t["response_mask"].clone()
    weights[0] = 0
    means = packed.sum_per_row(features, weights)[:, 0]
    wanted = (t["responses"] * weights).sum(1) / weights.sum(1).clamp(min=1)
    torch.testing.assert_close(means, wanted)


def test_a_first_token_without_a_predecessor_is_not_predicted() -> None:
    batch = make_batch(2)
    batch.tensors()["attention_mask"][:, :6] = 0  # no prompt at all
    packed = plain_pack(batch.batch, CPU, own_hidden=False)
    assert not packed.spread(torch.ones(len(packed.slots)))[:, 0].any()


def test_an_empty_pack_has_one_token_that_says_nothing() -> None:
    packed = empty_pack(CPU, (3, 4))
    assert packed.input_ids.shape == (1, 1) and len(packed.sources) == 0
    assert not packed.spread(torch.zeros(0)).any()
    assert packed.spread(torch.zeros(0)).shape == (3, 4)


def test_gradients_flow_through_the_grid() -> None:
    packed = pack(make_batch(4).batch, CPU)
    per_token = torch.randn(len(packed.slots), requires_grad=True)
    packed.spread(per_token).sum().backward()
    assert torch.equal(per_token.grad, torch.ones_like(per_token))


def test_row_lengths_count_real_tokens() -> None:
    batch = make_batch(4)
    assert row_lengths(batch.batch) == batch.tensors()["attention_mask"].sum(1).tolist()
