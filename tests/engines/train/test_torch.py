"""One device: the engine's numbers are plain transformers' numbers, however rows are cut, padded or ordered."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from train_cases import (
    FAMILIES,
    make_batch,
    make_model,
    make_plain,
    plain_logits,
    plain_scores,
    policy_loss,
    tokens,
    value_loss,
    widen,
)

from podium.config.schema import FSDPConfig, OptimConfig
from podium.engines.train.base import ModelOutputs, TrainEngine
from podium.engines.train.torch import TorchEngine
from podium.errors import CheckpointError, ConfigError
from podium.metric import Metrics
from podium.models.value import ValueModel
from podium.protocol import DataProto

OPTIM = OptimConfig(lr=1e-2, weight_decay=0.1)


@pytest.fixture
def plain_descent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps equal to the gradient, so that comparing weights compares gradients (AdamW hides their scale)."""
    monkeypatch.setattr(
        "podium.engines.train.torch.make_optimizer",
        lambda parameters, config: torch.optim.SGD(parameters, lr=config.lr),
    )


def make_engine(seed: int = 0, **changes: object) -> TorchEngine:
    checkpointing = bool(changes.pop("gradient_checkpointing", False))
    model = make_model("qwen2", seed, gradient_checkpointing=checkpointing)
    return TorchEngine(model, **({"optim": OPTIM} | changes))  # type: ignore[arg-type]


def make_value_engine(seed: int = 0, **changes: object) -> TorchEngine:
    value = ValueModel(make_model("qwen2", seed).base_model)
    torch.manual_seed(seed)
    torch.nn.init.normal_(value.value_head.weight)
    torch.nn.init.normal_(value.value_head.bias)
    return TorchEngine(value, **({"optim": OPTIM} | changes))  # type: ignore[arg-type]


def weights_after(engine: TorchEngine, batch: DataProto, steps: int = 2) -> dict[str, Tensor]:
    for _ in range(steps):
        metrics = engine.update(batch, policy_loss, tokens(batch), temperature=0.8)
        assert metrics["skipped_updates"].result() == 0
    return {name: tensor.clone() for name, tensor in engine.weights()}


def assert_same(ours: dict[str, Tensor], wanted: dict[str, Tensor], atol: float = 1e-6) -> None:
    assert ours.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(ours[name], wanted[name], atol=atol, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


# ---- scoring


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_scores_equal_the_padded_forward_of_transformers(family: str) -> None:
    batch = make_batch(9, prompt=7, response=10, seed=3)
    plain = plain_scores(make_plain(family), batch, temperature=0.7)
    engine = TorchEngine(make_model(family), max_tokens_per_micro_batch=50)
    ours = engine.log_probs(batch, temperature=0.7, with_entropy=True, with_sum_pi_squared=True)
    assert ours.keys() == plain.keys()
    for name, wanted in plain.items():
        torch.testing.assert_close(ours[name], wanted, atol=1e-4, rtol=0)


def test_long_sequences_score_the_same() -> None:
    """Past the length up to which attention scores are explicit."""
    batch = make_batch(3, prompt=60, response=90, seed=1)
    plain = plain_scores(make_plain("mistral", sliding_window=40), batch)
    ours = TorchEngine(make_model("mistral", sliding_window=40)).log_probs(batch, temperature=1.0)
    torch.testing.assert_close(ours["log_probs"], plain["log_probs"], atol=1e-4, rtol=0)


def test_values_are_those_before_each_response_token() -> None:
    batch = make_batch(6)
    engine = make_value_engine(max_tokens_per_micro_batch=30)
    t = batch.tensors()
    plain = make_plain("qwen2").base_model
    hidden = plain(
        input_ids=t["input_ids"], attention_mask=t["attention_mask"], position_ids=t["position_ids"]
    ).last_hidden_state
    assert isinstance(engine.module, ValueModel)
    wanted = engine.module.value_head(hidden[:, 5:-1]).squeeze(-1) * t["response_mask"]
    torch.testing.assert_close(engine.values(batch), wanted, atol=1e-4, rtol=0)


def test_mean_hidden_is_over_the_tokens_the_model_wrote() -> None:
    batch = make_batch(6)
    t = batch.tensors()
    t["response_mask"][:, 2] = 0  # a token of the environment
    engine = make_engine(max_tokens_per_micro_batch=30)
    hidden = (
        make_plain("qwen2")
        .base_model(input_ids=t["input_ids"], attention_mask=t["attention_mask"], position_ids=t["position_ids"])
        .last_hidden_state[:, 6:]
    )
    mask = t["response_mask"][..., None]
    wanted = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
    torch.testing.assert_close(engine.mean_hidden(batch), wanted, atol=1e-4, rtol=0)


def test_scoring_an_empty_batch_gives_empty_results() -> None:
    engine = make_engine()
    assert engine.log_probs(make_batch(0), temperature=1.0)["log_probs"].shape == (0, 9)
    assert engine.log_probs(DataProto(), temperature=1.0)["log_probs"].shape == (0, 0)
    assert engine.mean_hidden(make_batch(0)).shape == (0, 32)
    assert make_value_engine().values(make_batch(0)).shape == (0, 9)


def test_rows_without_any_token_score_zero() -> None:
    batch = make_batch(3)
    batch.tensors()["attention_mask"][1] = 0
    scores = make_engine().log_probs(batch, temperature=1.0)["log_probs"]
    assert not scores[1].any() and scores[0].any()
    batch.tensors()["attention_mask"][:] = 0
    assert not make_engine().log_probs(batch, temperature=1.0)["log_probs"].any()


# ---- updating


@pytest.mark.usefixtures("plain_descent")
def test_the_gradient_is_that_of_the_plain_padded_loss() -> None:
    batch = make_batch(7)
    t = batch.tensors()
    plain = make_plain("qwen2")
    log_p = plain_logits(plain, batch, 0.8).log_softmax(-1)
    picked = log_p.gather(-1, t["responses"][..., None]).squeeze(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    loss = ((picked * t["weight"] - 0.1 * entropy) * t["response_mask"]).sum() / tokens(batch)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
    wanted = {name: parameter.detach() - parameter.grad for name, parameter in plain.named_parameters()}

    engine = make_engine(grad_clip=0.5, max_tokens_per_micro_batch=40, optim=OptimConfig(lr=1.0))
    metrics = engine.update(batch, policy_loss, tokens(batch), temperature=0.8)
    assert metrics["grad_norm"].result() == pytest.approx(norm.item(), rel=1e-4)
    assert metrics["loss"].result() == pytest.approx(loss.item(), abs=1e-5)
    assert engine.step_count == 1
    assert norm > 0.5
    assert_same(dict(engine.weights()), wanted, atol=1e-6)


@pytest.mark.usefixtures("plain_descent")
@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens_per_micro_batch": 1},
        {"max_tokens_per_micro_batch": 37},
        {"micro_batch_size_per_gpu": 1},
        {"micro_batch_size_per_gpu": 3},
        {"gradient_checkpointing": True},
        {"fsdp": FSDPConfig(param_offload=True, optimizer_offload=True)},
    ],
    ids=str,
)
def test_an_update_does_not_depend_on_how_it_is_computed(changes: dict[str, object]) -> None:
    batch, optim = make_batch(8), OptimConfig(lr=1.0)
    wanted = weights_after(make_engine(optim=optim), batch)
    assert_same(weights_after(make_engine(optim=optim, **changes), batch), wanted, atol=1e-5)


def test_adamw_moves_as_plain_torch_does() -> None:
    batch = make_batch(7)
    engine = make_engine(grad_clip=None)
    plain = make_plain("qwen2")
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(3):
        scores = plain_scores(plain, batch, 0.8)
        mask, weight = batch.tensors()["response_mask"], batch.tensors()["weight"]
        loss = ((scores["log_probs"] * weight - 0.1 * scores["entropys"]) * mask).sum() / tokens(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ours = weights_after(engine, batch, steps=3)
    for name, parameter in plain.named_parameters():
        assert (ours[name] - parameter).norm() < 1e-3 * parameter.norm()


@pytest.mark.usefixtures("plain_descent")
def test_an_update_does_not_depend_on_padding_or_row_order() -> None:
    batch, optim = make_batch(8), OptimConfig(lr=1.0)
    wanted = weights_after(make_engine(optim=optim), batch)
    shuffled = batch.select_idxs([5, 2, 7, 0, 1, 6, 3, 4])
    assert_same(weights_after(make_engine(optim=optim), widen(batch, 3, 4)), wanted, atol=1e-5)
    assert_same(weights_after(make_engine(optim=optim), shuffled), wanted, atol=1e-5)


def test_a_value_model_learns() -> None:
    batch = make_batch(8)
    engine = make_value_engine(optim=OptimConfig(lr=3e-3), max_tokens_per_micro_batch=40)
    losses = [engine.update(batch, value_loss, tokens(batch))["vf_loss"].result() for _ in range(30)]
    assert losses[-1] < 0.3 * losses[0]


def test_weights_are_published_under_hugging_face_names_and_tied_ones_once() -> None:
    engine = make_engine()
    names = [name for name, _ in engine.weights()]
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
    assert set(names) == {name for name, _ in make_plain("qwen2").named_parameters()}
    assert next(iter(engine.weights(torch.bfloat16)))[1].dtype == torch.bfloat16


def test_a_reference_engine_scores_and_has_no_gradients() -> None:
    engine: TrainEngine = TorchEngine(make_model("qwen2"))
    assert not any(parameter.requires_grad for parameter in engine.module.parameters())
    assert engine.log_probs(make_batch(2), temperature=1.0)["log_probs"].any()


# ---- steps that must not happen


def poisoned(outputs: ModelOutputs, rows: TensorDict) -> tuple[Tensor, Metrics]:
    loss, metrics = policy_loss(outputs, rows)
    return loss * float("nan"), metrics


def infinite_gradient(outputs: ModelOutputs, rows: TensorDict) -> tuple[Tensor, Metrics]:
    """Finite loss, infinite slope: d√x/dx at 0."""
    loss, metrics = policy_loss(outputs, rows)
    assert outputs.log_probs is not None
    return loss + (outputs.log_probs.sum() * 0.0).sqrt(), metrics


@pytest.mark.parametrize(
    ("loss_fn", "culprit"),
    [(poisoned, "the loss of micro-batch 1 of 1"), (infinite_gradient, "the gradient of model.embed_tokens.weight")],
)
def test_a_step_that_is_not_finite_is_skipped_and_named(
    loss_fn: object, culprit: str, caplog: pytest.LogCaptureFixture
) -> None:
    batch = make_batch(4)
    engine = make_engine()
    weights_after(engine, batch, steps=1)
    before = {name: tensor.clone() for name, tensor in engine.weights()}
    with caplog.at_level(logging.WARNING):
        metrics = engine.update(batch, loss_fn, tokens(batch))  # type: ignore[arg-type]
    assert metrics["skipped_updates"].result() == 1
    assert culprit in caplog.text
    assert engine.step_count == 1
    assert_same(dict(engine.weights()), before, atol=0)
    other = make_engine()
    assert_same(weights_after(engine, batch, steps=1), weights_after(other, batch, steps=2), atol=0)


def test_a_step_without_tokens_leaves_the_weights() -> None:
    engine = make_engine()
    before = {name: tensor.clone() for name, tensor in engine.weights()}
    for batch in (make_batch(0), DataProto()):
        metrics = engine.update(batch, policy_loss, 0.0)
        assert metrics["skipped_updates"].result() == 0
    silent = make_batch(3)
    silent.tensors()["response_mask"][:] = 0
    engine.update(silent, policy_loss, 0.0)
    assert engine.step_count == 0
    assert_same(dict(engine.weights()), before, atol=0)


# ---- state


def test_training_goes_on_exactly_after_a_load(tmp_path: Path) -> None:
    batch = make_batch(6)
    optim = OptimConfig(lr=1e-2, lr_warmup_steps=3, lr_decay="cosine")
    straight = make_engine(optim=optim, total_steps=6)
    wanted = weights_after(straight, batch, steps=4)

    first = make_engine(optim=optim, total_steps=6)
    weights_after(first, batch, steps=2)
    first.save(tmp_path)
    second = make_engine(seed=5, optim=optim, total_steps=6)
    weights_after(second, batch, steps=1)
    second.load(tmp_path)
    assert second.step_count == 2
    assert_same(weights_after(second, batch, steps=2), wanted, atol=0)


@pytest.mark.parametrize(
    "optim",
    [
        OptimConfig(name="SGD", lr=1e-2, kwargs={"momentum": 0.9}),
        OptimConfig(name="Adafactor", lr=1e-2),
        OptimConfig(name="RMSprop", lr=1e-3),
    ],
    ids=lambda optim: optim.name,
)
def test_training_goes_on_exactly_after_a_load_with_any_optimizer(optim: OptimConfig, tmp_path: Path) -> None:
    batch, first, second = make_batch(6), make_engine(optim=optim), make_engine(seed=5, optim=optim)
    weights_after(first, batch, steps=2)
    first.save(tmp_path)
    second.load(tmp_path)
    assert_same(weights_after(second, batch, steps=2), weights_after(first, batch, steps=2), atol=0)


def test_a_checkpoint_from_before_the_first_step_loads(tmp_path: Path) -> None:
    batch = make_batch(6)
    make_engine().save(tmp_path)
    engine = make_engine(seed=5)
    weights_after(engine, batch, steps=1)
    engine.load(tmp_path)
    assert_same(weights_after(engine, batch, steps=2), weights_after(make_engine(), batch, steps=2), atol=0)


def test_a_reference_loads_the_model_alone(tmp_path: Path) -> None:
    trained = make_engine()
    wanted = weights_after(trained, make_batch(4))
    trained.save(tmp_path)
    reference = TorchEngine(make_model("qwen2", seed=3))
    reference.load(tmp_path)
    assert_same(dict(reference.weights()), wanted, atol=0)


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no finished engine checkpoint"):
        make_engine().load(tmp_path)
    TorchEngine(make_model("llama"), optim=OPTIM).save(tmp_path / "llama")
    with pytest.raises(CheckpointError, match="lacks 6 tensors"):
        make_engine().load(tmp_path / "llama")
    TorchEngine(make_model("qwen2", vocab_size=50), optim=OPTIM).save(tmp_path / "small")
    with pytest.raises(CheckpointError, match="does not fit"):
        make_engine().load(tmp_path / "small")


# ---- half precision


def test_bfloat16_computes_in_half_precision_and_keeps_float32_masters(tmp_path: Path) -> None:
    batch = make_batch(6)
    engine = make_engine(dtype=torch.bfloat16, max_tokens_per_micro_batch=40, optim=OptimConfig(lr=1e-5))
    whole = make_engine()
    assert {p.dtype for p in engine.module.parameters()} == {torch.bfloat16}
    assert {t.dtype for _, t in engine.weights()} == {torch.float32}
    ours, wanted = (e.log_probs(batch, temperature=1.0)["log_probs"] for e in (engine, whole))
    assert 0 < (ours - wanted).abs().max() < 0.5
    before = {name: tensor.clone() for name, tensor in engine.weights()}
    engine.update(batch, policy_loss, tokens(batch))
    moved = [(tensor - before[name]).abs().max().item() for name, tensor in engine.weights()]
    assert min(moved) > 0  # a step too small for bfloat16 still moves every master
    engine.save(tmp_path)
    again = make_engine(seed=4, dtype=torch.bfloat16)
    again.load(tmp_path)
    assert_same(dict(again.weights()), dict(engine.weights()), atol=0)
    assert torch.equal(again.module.lm_head.weight, engine.module.lm_head.weight)  # type: ignore[union-attr,arg-type]


def test_bfloat16_gradients_of_all_micro_batches_add_up() -> None:
    batch = make_batch(8)
    small = make_engine(dtype=torch.bfloat16, micro_batch_size_per_gpu=1).update(batch, policy_loss, tokens(batch))
    whole = make_engine().update(batch, policy_loss, tokens(batch))
    assert small["grad_norm"].result() == pytest.approx(whole["grad_norm"].result(), rel=0.05)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="total number of optimizer steps"):
        make_engine(optim=OptimConfig(lr_decay="cosine"))
    with pytest.raises(ConfigError, match="max_tokens_per_micro_batch is 0"):
        make_engine(max_tokens_per_micro_batch=0)
