from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from podium.engines.rollout.native.body import Model, ModuleBody
from podium.engines.rollout.native.fused import fuse, storages
from podium.engines.rollout.native.lean import LeanBody, is_lean
from podium.models.attention import install_attention

TOKENS = [5, 9, 40, 7, 7, 61, 3, 88, 12, 30, 31, 2]


@torch.no_grad()
def plain(model: PreTrainedModel) -> torch.Tensor:
    """Log-probs of tokens 1 to P-1 by transformers' own forward pass."""
    model.set_attn_implementation("eager")
    log_probs = model(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0].log_softmax(-1)
    return log_probs[:-1].gather(1, torch.tensor(TOKENS[1:])[:, None]).squeeze(1)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 1e4,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
        ),
        ("qwen2", {}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
        ("qwen3", {}),
        ("mistral", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_the_lean_pass_computes_what_the_module_computes(family: str, options: dict[str, Any], make_lm: Any) -> None:
    model, other = make_lm(family, **options), make_lm(family, **options)
    install_attention(model)
    lean = Model(model, torch.float32)
    assert isinstance(lean.body, LeanBody)
    torch.testing.assert_close(lean.log_probs(TOKENS), plain(other), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["gemma", "gemma3", "phi", "phi3", "granite"])
def test_other_families_run_through_their_own_module(family: str, make_lm: Any) -> None:
    model, other = make_lm(family), make_lm(family)
    install_attention(model)
    own = Model(model, torch.float32)
    assert isinstance(own.body, ModuleBody)
    torch.testing.assert_close(own.log_probs(TOKENS), plain(other), atol=1e-5, rtol=1e-5)


class Adapted(torch.nn.Linear):
    """As adapters and quantizers do it: another class in a projection's place."""


@pytest.mark.parametrize("change", ["adapter", "hook", "dtype", "rope", "activation"])
def test_a_module_that_computes_something_else_is_not_lean(change: str, make_lm: Any) -> None:
    options: dict[str, Any] = {"hidden_act": "gelu"} if change == "activation" else {}
    if change == "rope":
        options["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    model = make_lm("llama", **options)
    attention = model.model.layers[1].self_attn
    if change == "adapter":
        attention.v_proj = Adapted(attention.v_proj.in_features, attention.v_proj.out_features, bias=False)
    elif change == "hook":
        attention.v_proj.register_forward_hook(lambda _module, _args, out: out * 2)
    assert not is_lean(model, torch.bfloat16 if change == "dtype" else torch.float32)
    assert is_lean(make_lm("llama"), torch.float32)


def test_fused_parameters_keep_their_values_and_share_their_memory() -> None:
    parts = [torch.nn.Parameter(torch.randn(rows, 3)) for rows in (4, 2, 1)]
    values = [part.detach().clone() for part in parts]
    whole = fuse(parts)
    assert all(part.equal(value) for part, value in zip(parts, values, strict=True))
    assert whole.equal(torch.cat(values))
    optimizer = torch.optim.AdamW(parts, lr=0.1)
    sum(part.square().sum() for part in parts).backward()  # type: ignore[union-attr]
    optimizer.step()
    assert whole.equal(torch.cat([part.detach() for part in parts])) and not whole.equal(torch.cat(values))
    again = fuse(parts)
    assert again.data_ptr() == whole.data_ptr(), "what lies together already is not copied"


def test_parameters_that_moved_are_found_and_fused_anew(make_lm: Any) -> None:
    model, other = make_lm(), make_lm(seed=4)
    install_attention(model)
    lean = Model(model, torch.float32)

    def moved() -> bool:
        was = lean.body.storages
        lean.refresh()
        return lean.body.storages != was

    assert not moved()
    before = storages(model.parameters())
    for parameter, new in zip(model.parameters(), other.parameters(), strict=True):
        parameter.data = new.data.clone()
    assert moved() and not moved() and storages(model.parameters()) != before
    torch.testing.assert_close(lean.log_probs(TOKENS), plain(other), atol=1e-5, rtol=1e-5)
    lean.body.forget()
    assert not moved(), "the same places: nothing that points there is stale"
    torch.testing.assert_close(lean.log_probs(TOKENS), plain(other), atol=1e-5, rtol=1e-5)
