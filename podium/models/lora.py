"""LoRA through peft: small trained matrices beside frozen weights, and the two ways to look at the result.

`add_lora` puts adapters into a module in place, so that it keeps its class and its parts: no wrapper stands around it.
`adapters_off` is the model as it was before. `merged_tensors` gives the plain model under its plain names, each adapted
weight as W + scale · B·A, which is what a rollout engine runs and what an export holds; `adapter_tensors` gives the
adapter alone as peft names it. Sharding, optimizing and saving are the train engine's work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from podium.config.schema import ModelConfig
from podium.errors import ModelError
from podium.models.names import ADAPTER, BASE, COPY, ORIGINAL, plain_name
from podium.models.value import ValueModel

PEFT_PREFIX = "base_model.model."
"""What peft puts before every name in an adapter's file; no model's own tensor begins so."""

Full = Callable[[Tensor], Tensor]
"""From a tensor that may be a shard to the whole of it; collective."""


def add_lora(module: PreTrainedModel | ValueModel, model: ModelConfig, seed: int = 0) -> None:
    """Adapters of `model.lora_rank` into `module`, everything else frozen; nothing happens at rank 0.

    The policy is unchanged at first (B is zero), and A is the same on every rank. A value head is trained in full.
    """
    if model.lora_rank == 0:
        return
    body = module.base_model if isinstance(module, ValueModel) else module
    _refuse_tied_targets(body, model)
    config = _lora_config(body, model)
    device = next(module.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        try:
            _peft().inject_adapter_in_model(config, body, adapter_name=ADAPTER)
        except ValueError as error:
            raise ModelError(f"LoRA does not fit {type(body).__name__}: {error}") from error
        torch.manual_seed(seed)
        for name, part in body.named_modules():
            if hasattr(part, "lora_A"):
                _begin(name, part)


def _begin(name: str, layer: Any) -> None:
    """The adapter's first values, which do not depend on whether the model has its own yet."""
    if not isinstance(_base_of(layer), nn.Linear | nn.Embedding):
        kind = type(_base_of(layer)).__name__
        raise ModelError(f"LoRA on {name} ({kind}) is not supported; target linear or embedding layers.")
    for key in ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B"):
        held = getattr(layer, key)
        if any(parameter.is_meta for parameter in held.parameters()):
            held.to_empty(device="cpu")
    layer.reset_lora_parameters(ADAPTER, True)


def has_adapters(module: nn.Module) -> bool:
    return any(True for _ in _switches(module))


@contextmanager
def adapters_off(module: nn.Module) -> Iterator[None]:
    """Inside, the module computes what it computed before `add_lora`, to the last bit.

    Not by peft's own switch, which also turns gradients off and on: sharded parameters have settled theirs.
    """
    switches = list(_switches(module))
    before = [part._disable_adapters for part in switches]
    for part in switches:
        part._disable_adapters = True
    try:
        yield
    finally:
        for part, was_off in zip(switches, before, strict=True):
            part._disable_adapters = was_off


def head_parameters(head: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight and bias an output head computes with: plain, adapted, or replaced by a trained copy."""
    part: Any = head
    if hasattr(part, "modules_to_save"):
        part = part.original_module if part.disable_adapters else part.modules_to_save[ADAPTER]
    elif hasattr(part, "lora_A"):
        base = _base_of(part)
        if part.disable_adapters:
            return base.weight, base.bias
        a, b = part.lora_A[ADAPTER].weight, part.lora_B[ADAPTER].weight
        return base.weight + part.scaling[ADAPTER] * (b @ a).to(base.weight.dtype), base.bias
    return part.weight, part.bias


def merged_tensors(
    module: nn.Module, named: Mapping[str, Tensor], full: Full, dtype: torch.dtype | None
) -> Iterator[tuple[str, Tensor]]:
    """`named` (the parameters, or masters in their place) as the tensors of the plain model, one at a time."""
    for name, tensor in named.items():
        if ".lora_" in name or ORIGINAL in name:
            continue
        plain = plain_name(name)
        layer = name.removesuffix(f"{BASE}weight")
        if layer != name:
            yield plain, _merge(module.get_submodule(layer), layer, named, full).to(dtype or torch.float32)
        else:
            yield plain, full(tensor.detach().to(dtype or tensor.dtype))


def adapter_tensors(module: nn.Module, named: Mapping[str, Tensor], full: Full) -> Iterator[tuple[str, Tensor]]:
    """The adapter's own tensors, named as in peft's `adapter_model.safetensors`, tied ones under each name."""
    known = {id(parameter): name for name, parameter in module.named_parameters()}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if ".lora_" in name or COPY in name:
            whole = full(named[known[id(parameter)]].detach())
            yield PEFT_PREFIX + name.replace(COPY, ".").replace(f".{ADAPTER}", ""), whole.clone()


def save_adapter_config(module: nn.Module, folder: Path) -> None:
    """`adapter_config.json` of a causal LM's adapter."""
    config: Any = module.peft_config[ADAPTER]  # type: ignore[index]
    config.inference_mode = True
    config.save_pretrained(str(folder))


def _merge(layer: Any, name: str, named: Mapping[str, Tensor], full: Full) -> Tensor:
    """The layer's weight with its adapter, in float32."""
    base = full(named[f"{name}{BASE}weight"].detach()).float()
    if f"{name}.lora_embedding_A.{ADAPTER}" in named:
        a, b = (full(named[f"{name}.lora_embedding_{x}.{ADAPTER}"].detach()).float() for x in "AB")
        return base.add((b @ a).t(), alpha=layer.scaling[ADAPTER])
    a, b = (full(named[f"{name}.lora_{x}.{ADAPTER}.weight"].detach()).float() for x in "AB")
    return base.addmm(b, a, alpha=layer.scaling[ADAPTER])


def _switches(module: nn.Module) -> Iterator[Any]:
    """The parts that peft put in: adapted layers, and copies of whole layers beside the original."""
    return (part for part in module.modules() if hasattr(part, "_disable_adapters"))


def _base_of(layer: Any) -> Any:
    return layer.get_base_layer()


def _lora_config(body: PreTrainedModel, model: ModelConfig) -> Any:
    kept = list(model.modules_to_save)
    every = model.target_modules == ["all-linear"]
    return _peft().LoraConfig(
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,
        lora_dropout=0.0,
        target_modules="all-linear" if every else list(model.target_modules),
        exclude_modules=list(model.exclude_modules) or None,
        modules_to_save=kept or None,
        ensure_weight_tying=bool(kept) and _is_tied(body),
        task_type="CAUSAL_LM" if body.can_generate() else None,
        base_model_name_or_path=model.path,
    )


def _refuse_tied_targets(body: PreTrainedModel, model: ModelConfig) -> None:
    tied = [word for word in model.target_modules if word.endswith(("lm_head", "embed_tokens"))]
    if tied and _is_tied(body):
        raise ModelError(
            f"model.target_modules names {tied[0]}, but {type(body).__name__} uses one matrix as embedding and output "
            f"head, which an adapter would part. Train it in full: model.modules_to_save=[{tied[0]}]."
        )


def _is_tied(body: PreTrainedModel) -> bool:
    return bool(getattr(body.config.get_text_config(), "tie_word_embeddings", False))


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ModelError("model.lora_rank needs the package peft: pip install 'podium[lora]'.") from error
    return peft
