"""Adapters in the train engine: only they move and are saved, the base model stays exactly, merged weights come out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rank_jobs import LORA, lora_and_save, lora_engine, lora_from_saved, many, run_ranks, train_lora
from torch import Tensor
from train_cases import make_batch, make_model, make_plain, plain_scores, policy_loss, tokens, value_loss

from podium.checkpoint.export import export_adapter
from podium.config.schema import ModelConfig, OptimConfig
from podium.engines.train.state import saved_names
from podium.engines.train.torch import TorchEngine
from podium.errors import CheckpointError, ModelError
from podium.models.lora import add_lora
from podium.models.value import ValueModel

FORMS = {
    "all linear layers": {},
    "two layers": {"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["layers.1.self_attn.q_proj"]},
    "tied embedding in full": {"modules_to_save": ["embed_tokens"]},
}


def assert_same(ours: dict[str, Tensor], wanted: dict[str, Tensor], atol: float = 1e-5) -> None:
    assert ours.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(ours[name], wanted[name], atol=atol, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


def base_engine(family: str, dtype: torch.dtype = torch.float32) -> TorchEngine:
    """The base model, its rows cut as `lora_engine` cuts them."""
    return TorchEngine(make_model(family), max_tokens_per_micro_batch=30, dtype=dtype)


def step(engine: TorchEngine, steps: int = 2) -> None:
    batch = make_batch(6)
    for _ in range(steps):
        engine.update(batch, policy_loss, tokens(batch))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_the_reference_is_the_base_model_exactly_before_and_after_training(form: str, family: str) -> None:
    batch = make_batch(6)
    wanted = base_engine(family).log_probs(batch, temperature=0.9)["log_probs"]
    engine = lora_engine(family=family, **FORMS[form])
    assert engine.log_probs(batch, temperature=0.9)["log_probs"].equal(wanted)
    step(engine)
    with engine.reference():
        assert engine.log_probs(batch, temperature=0.9)["log_probs"].equal(wanted)
    trained = engine.log_probs(batch, temperature=0.9)["log_probs"]
    assert (trained - wanted).abs().max() > 1e-3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_merged_weights_are_a_plain_model_that_says_the_same(form: str, family: str) -> None:
    engine = lora_engine(family=family, **FORMS[form])
    step(engine)
    batch, plain = make_batch(6), make_plain(family, seed=9)
    merged = dict(engine.weights())
    assert merged.keys() == {name for name, _ in plain.named_parameters()}
    plain.load_state_dict(merged, strict=family != "qwen2")
    wanted = plain_scores(plain, batch)["log_probs"]
    torch.testing.assert_close(engine.log_probs(batch, temperature=1.0)["log_probs"], wanted, atol=1e-4, rtol=0)


def test_an_adapted_head_trains_and_merges() -> None:
    engine = lora_engine(family="llama", target_modules=["lm_head", "embed_tokens"])
    step(engine)
    plain = make_plain("llama", seed=9)
    plain.load_state_dict(dict(engine.weights()))
    batch = make_batch(5)
    wanted = plain_scores(plain, batch)["log_probs"]
    torch.testing.assert_close(engine.log_probs(batch, temperature=1.0)["log_probs"], wanted, atol=1e-4, rtol=0)


def test_only_adapters_are_trained_and_saved(tmp_path: Path) -> None:
    engine = lora_engine()
    frozen = {n: p.clone() for n, p in engine.module.named_parameters() if not p.requires_grad}
    step(engine)
    assert all(p.equal(frozen[n]) for n, p in engine.module.named_parameters() if not p.requires_grad)
    assert engine.optimizer is not None
    assert len(engine.optimizer.state) == len([p for p in engine.module.parameters() if p.requires_grad])
    engine.save(tmp_path)
    assert all("lora_" in name for name in saved_names(tmp_path) if name != "step_count")
    again = lora_engine(lora_seed=4)
    again.load(tmp_path)
    step(engine)
    step(again)
    assert_same(dict(again.weights()), dict(engine.weights()), atol=0)


def test_a_checkpoint_of_another_rank_or_of_a_full_model_is_refused(tmp_path: Path) -> None:
    lora_engine().save(tmp_path / "lora")
    TorchEngine(make_model("qwen2"), optim=OptimConfig()).save(tmp_path / "full")
    with pytest.raises(CheckpointError, match="does not fit"):
        lora_engine(lora_rank=3).load(tmp_path / "lora")
    with pytest.raises(CheckpointError, match="other LoRA settings"):
        lora_engine().load(tmp_path / "full")


def test_the_exported_adapter_loads_with_peft(tmp_path: Path) -> None:
    from peft import PeftModel

    head, tied = {"modules_to_save": ["lm_head"]}, {"modules_to_save": ["embed_tokens"]}
    cases = (("llama", {}), ("llama", head), ("qwen2", {}), ("qwen2", tied))
    for number, (family, form) in enumerate(cases):
        engine = lora_engine(family=family, **form)
        step(engine)
        folder = tmp_path / str(number)
        export_adapter(dict(engine.adapter()), engine.module, folder)
        theirs = PeftModel.from_pretrained(make_plain(family), str(folder))
        batch = make_batch(5)
        ours = engine.log_probs(batch, temperature=1.0)["log_probs"]
        torch.testing.assert_close(plain_scores(theirs, batch)["log_probs"], ours, atol=1e-4, rtol=0)


def test_half_precision_freezes_the_base_in_half_and_keeps_float32_adapters() -> None:
    engine = lora_engine(engine={"dtype": torch.bfloat16, "optim": OptimConfig(lr=1e-5)})
    assert {p.dtype for p in engine.module.parameters()} == {torch.bfloat16}
    assert {t.dtype for t in engine.placed.trained_weights().values()} == {torch.float32}
    before = {name: t.clone() for name, t in engine.placed.trained_weights().items()}
    step(engine, steps=1)
    assert any(not t.equal(before[name]) for name, t in engine.placed.trained_weights().items())
    exact = base_engine("qwen2", dtype=torch.bfloat16)
    batch = make_batch(4)
    with engine.reference():
        ours = engine.log_probs(batch, temperature=1.0)["log_probs"]
    assert ours.equal(exact.log_probs(batch, temperature=1.0)["log_probs"])


def test_a_critic_with_adapters_learns_and_merges_to_plain_names() -> None:
    value = ValueModel(make_model("qwen2").base_model)
    names = {name for name, _ in value.named_parameters()}
    add_lora(value, ModelConfig(**LORA))
    engine = TorchEngine(value, optim=OptimConfig(lr=1e-2))
    batch = make_batch(8)
    losses = [engine.update(batch, value_loss, tokens(batch))["vf_loss"].result() for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
    assert {name for name, _ in engine.weights()} == names
    assert "value_head.weight" in engine.placed.saved_weights()


def test_settings_that_cannot_be_merged_are_refused() -> None:
    with pytest.raises(ModelError, match="one matrix as embedding and output head"):
        lora_engine(family="qwen2", target_modules=["lm_head"])
    with pytest.raises(ModelError, match="LoRA does not fit"):
        lora_engine(target_modules=["no_such_layer"])


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_with_adapters_train_as_one(num_ranks: int, tmp_path: Path) -> None:
    sizes = {2: [3, 5], 3: [6, 0, 2]}[num_ranks]
    saved = tmp_path / "saved"
    cases = [(train_lora, (sizes, form)) for form in FORMS.values()]
    cases += [(train_lora, (sizes, {}, {"dtype": torch.bfloat16})), (lora_and_save, (sizes, saved))]
    results = run_ranks(many, num_ranks, tmp_path / "ranks", cases)
    wanted = [train_lora([8], form) for form in FORMS.values()]
    for rank in results:
        for ours, one in zip(rank[: len(FORMS)], wanted, strict=True):
            for mine, alone in zip(ours[:2], one[:2], strict=True):
                assert_same(mine, alone)
        frozen, trained = rank[len(FORMS)][3]
        assert (frozen, trained) == ({torch.bfloat16}, {torch.float32})
    for number, one in enumerate(wanted):  # the reference of all ranks' rows, exactly
        reference = torch.cat([rank[number][2] for rank in results])
        torch.testing.assert_close(reference, one[2], atol=1e-5, rtol=0)
    alone, base = lora_from_saved([8], saved), base_engine("qwen2")
    assert_same(alone, results[0][-1])
    assert wanted[0][2].equal(base.log_probs(make_batch(8), temperature=1.0)["log_probs"])
