"""Small random models and batches for the train engine's tests, and what plain transformers says about them."""

from __future__ import annotations

import random

import torch
from tensordict import TensorDict
from torch import Tensor
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
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from podium.engines.train.base import ModelOutputs
from podium.metric import Metric, Metrics
from podium.models.load import prepare
from podium.protocol import DataProto, compute_position_ids

VOCAB = 97
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,  # far from uniform, so that a wrong mask or position shows
}

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "smollm2": (
        LlamaConfig,
        LlamaForCausalLM,
        {"hidden_size": 36, "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True},
    ),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 8}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": 5}),
    "gemma": (GemmaConfig, GemmaForCausalLM, {"head_dim": 8}),
    "gemma3": (
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        {"head_dim": 8, "sliding_window": 4, "final_logit_softcapping": 2.0},
    ),
    "phi": (PhiConfig, PhiForCausalLM, {"resid_pdrop": 0.5}),
    "phi3": (Phi3Config, Phi3ForCausalLM, {"sliding_window": 5}),
    "granite": (GraniteConfig, GraniteForCausalLM, {"logits_scaling": 3.0}),
}


def make_plain(family: str = "qwen2", seed: int = 0, **changes: object) -> PreTrainedModel:
    """A model as transformers makes it."""
    config_class, model_class, extra = FAMILIES[family]
    torch.manual_seed(seed)
    return model_class(config_class(**(SHAPE | extra | changes))).eval()


def make_model(
    family: str = "qwen2", seed: int = 0, gradient_checkpointing: bool = False, **changes: object
) -> PreTrainedModel:
    """The same, prepared for packed calls."""
    model = make_plain(family, seed, **changes)
    prepare(model, gradient_checkpointing)
    return model


def make_batch(rows: int, *, prompt: int = 6, response: int = 9, seed: int = 0) -> DataProto:
    """Ragged rows: prompts padded on the left, responses on the right, and a random `weight` for losses."""
    rng = random.Random(seed)
    pieces = []
    for _ in range(rows):
        real_prompt, real_response = rng.randint(1, prompt), rng.randint(0, response)
        pieces.append(
            (
                [0] * (prompt - real_prompt) + [rng.randrange(3, VOCAB) for _ in range(real_prompt)],
                [rng.randrange(3, VOCAB) for _ in range(real_response)] + [0] * (response - real_response),
                [0] * (prompt - real_prompt) + [1] * (real_prompt + real_response) + [0] * (response - real_response),
            )
        )
    prompts = torch.tensor([piece[0] for piece in pieces]).view(rows, prompt)
    responses = torch.tensor([piece[1] for piece in pieces]).view(rows, response)
    attention_mask = torch.tensor([piece[2] for piece in pieces]).view(rows, prompt + response)
    weight = torch.rand(rows, response, generator=torch.Generator().manual_seed(seed)) - 0.3
    return DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": responses,
            "input_ids": torch.cat([prompts, responses], 1),
            "attention_mask": attention_mask,
            "position_ids": compute_position_ids(attention_mask),
            "response_mask": attention_mask[:, prompt:].clone(),
            "weight": weight,
        }
    )


def widen(batch: DataProto, left: int, right: int) -> DataProto:
    """The same rows with more padding."""
    t = batch.tensors()
    pad = torch.nn.functional.pad
    tensors = {
        "prompts": pad(t["prompts"], (left, 0)),
        "responses": pad(t["responses"], (0, right)),
        "input_ids": pad(t["input_ids"], (left, right)),
        "attention_mask": pad(t["attention_mask"], (left, right)),
        "response_mask": pad(t["response_mask"], (0, right)),
        "weight": pad(t["weight"], (0, right)),
    }
    return DataProto.from_dict(tensors=tensors | {"position_ids": compute_position_ids(tensors["attention_mask"])})


def plain_logits(model: PreTrainedModel, batch: DataProto, temperature: float = 1.0) -> Tensor:
    """[B, R, V]: plain transformers on padded rows; the logits that predict each response token."""
    t = batch.tensors()
    logits = model(
        input_ids=t["input_ids"], attention_mask=t["attention_mask"], position_ids=t["position_ids"], use_cache=False
    ).logits
    width = t["responses"].shape[1]
    return logits[:, -width - 1 : -1].float() / temperature


def plain_scores(model: PreTrainedModel, batch: DataProto, temperature: float = 1.0) -> dict[str, Tensor]:
    log_p = plain_logits(model, batch, temperature).log_softmax(-1)
    mask = batch.tensors()["response_mask"]
    picked = log_p.gather(-1, batch.tensors()["responses"][..., None]).squeeze(-1)
    p = log_p.exp()
    return {
        "log_probs": picked * mask,
        "entropys": -(p * log_p).sum(-1) * mask,
        "sum_pi_squared": p.square().sum(-1) * mask,
    }


def policy_loss(outputs: ModelOutputs, rows: TensorDict) -> tuple[Tensor, Metrics]:
    """A loss that uses log-probs and entropy, as a sum over tokens."""
    assert outputs.log_probs is not None and outputs.entropy is not None
    mask = rows["response_mask"]
    loss = ((outputs.log_probs * rows["weight"] - 0.1 * outputs.entropy) * mask).sum()
    return loss, {"loss": Metric.mean(loss.item(), mask.sum().item())}


def value_loss(outputs: ModelOutputs, rows: TensorDict) -> tuple[Tensor, Metrics]:
    assert outputs.values is not None
    loss = ((outputs.values - rows["weight"]).square() * rows["response_mask"]).sum()
    return loss, {"vf_loss": Metric.mean(loss.item(), rows["response_mask"].sum().item())}


def tokens(batch: DataProto) -> float:
    """The count that belongs to these losses."""
    return float(batch.tensors()["response_mask"].sum()) if batch.batch is not None else 0.0
