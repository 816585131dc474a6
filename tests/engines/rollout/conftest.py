"""Tiny random models of several families, and a tokenizer whose tokens are pieces of plain text."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB_SIZE = 96
EOS = 1

FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "gemma": (GemmaConfig, GemmaForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
    "phi": (PhiConfig, PhiForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
    "granite": (GraniteConfig, GraniteForCausalLM),
}
FAMILY_OPTIONS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 7},
    "gemma3": {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]},
    "granite": {"logits_scaling": 2.0, "residual_multiplier": 0.7, "embedding_multiplier": 3.0},
}

MakeLM = Callable[..., PreTrainedModel]


@pytest.fixture(scope="session")
def make_lm() -> MakeLM:
    """`make_lm(family, seed=0, **config)`: weights large enough that greedy texts do not repeat one token."""

    def make(family: str = "qwen2", seed: int = 0, **overrides: Any) -> PreTrainedModel:
        options = {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "intermediate_size": 48,
            "max_position_embeddings": 256,
            "eos_token_id": EOS,
            "bos_token_id": None,
            "pad_token_id": None,
        }
        config_class, model_class = FAMILIES[family]
        options |= FAMILY_OPTIONS.get(family, {})
        torch.manual_seed(seed)
        model: PreTrainedModel = model_class(config_class(**(options | overrides))).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 2:
                    parameter.normal_(std=0.5 if "embed" in name or "head" in name else 0.3)
                elif name.endswith("bias"):
                    parameter.normal_(std=0.1)
        return model

    return make


def random_prompts(count: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Prompts of 1 to `longest` tokens, none of them end-of-sequence."""
    rng = random.Random(seed)
    return [[rng.randrange(2, VOCAB_SIZE) for _ in range(rng.randint(1, longest))] for _ in range(count)]


@pytest.fixture(scope="session", name="random_prompts")
def random_prompts_fixture() -> Callable[..., list[list[int]]]:
    return random_prompts


@pytest.fixture(scope="session")
def text_tokenizer() -> PreTrainedTokenizerFast:
    """96 tokens: single characters and a few longer pieces, so that a string can end inside a token."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789<>/.,:;!?()[]+-*=_#@&%$"
    pieces = [
        *letters,
        "ab",
        "cd",
        "ef",
        "gh",
        "ij",
        "kl",
        "mn",
        "op",
        "qr",
        "st",
        "uv",
        "wx",
        "yz",
        "></",
        "abc",
        "def",
    ]
    pieces += [f"{a}{b}" for a in "02468" for b in "13579"]
    vocab = {piece: i for i, piece in enumerate(pieces[:VOCAB_SIZE])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


@torch.no_grad()
def plain_log_probs(model: PreTrainedModel, prompt: list[int], response: list[int]) -> torch.Tensor:
    """Log-probs [R] of the response by a plain forward pass with transformers' own attention."""
    installed = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        ids = torch.tensor([prompt + response])
        logits = model(input_ids=ids, use_cache=False).logits[0].float()
    finally:
        model.set_attn_implementation(installed)
    rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return rows.gather(1, torch.tensor(response)[:, None]).squeeze(1)


@pytest.fixture(scope="session", name="plain_log_probs")
def plain_log_probs_fixture() -> Callable[..., torch.Tensor]:
    return plain_log_probs


@torch.no_grad()
def transformers_greedy(model: PreTrainedModel, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Left-padded, so that one call answers all prompts; up to and including end-of-sequence."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    generate: Any = model.generate
    rows = generate(ids, attention_mask=mask, max_new_tokens=max_tokens, do_sample=False, pad_token_id=0)[:, width:]
    return [row[: row.index(EOS) + 1] if EOS in row else row for row in rows.tolist()]


@pytest.fixture(scope="session", name="transformers_greedy")
def transformers_greedy_fixture() -> Callable[..., list[list[int]]]:
    return transformers_greedy
