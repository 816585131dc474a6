"""A trained model as a Hugging Face folder: safetensors, config, generation config, tokenizer.

`export_hf` writes one from named tensors, `export_adapter` a LoRA adapter as peft reads it; `export_checkpoint` takes
what lies in a checkpoint as `hf/` or `hf_adapter/` and gives it another number type where asked.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import GenerationConfig

from podium.errors import CheckpointError
from podium.models.lora import save_adapter_config

WEIGHTS = "model.safetensors"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def export_hf(
    weights: Iterable[tuple[str, Tensor]], config: Any, tokenizer: Any, folder: Path, dtype: Any = None
) -> None:
    """Write what `from_pretrained` reads. Tied tensors are stored once."""
    folder.mkdir(parents=True, exist_ok=True)
    tied = getattr(config, "tie_word_embeddings", False)
    tensors = {
        name: tensor.detach().to("cpu", dtype=dtype).contiguous()
        for name, tensor in weights
        if not (tied and name == "lm_head.weight")
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config.save_pretrained(folder)
    generation = GenerationConfig.from_model_config(config)
    words = getattr(tokenizer, "tokenizer", tokenizer)  # a vision model's processor has one, and is saved with it
    generation.eos_token_id, generation.pad_token_id = words.eos_token_id, words.pad_token_id
    generation.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def export_adapter(tensors: Mapping[str, Tensor], module: nn.Module, folder: Path) -> None:
    """Write what `PeftModel.from_pretrained` reads; `tensors` have peft's names."""
    folder.mkdir(parents=True, exist_ok=True)
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(held, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    save_adapter_config(module, folder)


def export_checkpoint(checkpoint: Path, target: Path, dtype: str | None = None, adapter: bool = False) -> Path:
    """Copy a checkpoint's model (or its adapter) to a folder that must not hold anything yet."""
    source = checkpoint / ("hf_adapter" if adapter else "hf")
    if not source.is_dir():
        what = "adapter: it was not trained with LoRA (model.lora_rank)" if adapter else "hf/ folder"
        raise CheckpointError(f"{checkpoint} has no {what}")
    if dtype is not None and dtype not in DTYPES:
        raise CheckpointError(f"dtype {dtype} is not one of {', '.join(DTYPES)}")
    if target.exists() and any(target.iterdir()):
        raise CheckpointError(f"{target} already holds files; name a new or empty folder")
    shutil.copytree(source, target, dirs_exist_ok=True)
    if dtype is not None:
        for path in target.glob("*.safetensors"):
            tensors = {name: _cast(tensor, DTYPES[dtype]) for name, tensor in load_file(path).items()}
            save_file(tensors, path, metadata={"format": "pt"})
        path = target / "config.json"
        if path.is_file():  # an adapter's configuration names no number type
            config = json.loads(path.read_text(encoding="utf-8"))
            path.write_text(json.dumps(config | {"dtype": dtype}, indent=2), encoding="utf-8")
    return target


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype).contiguous() if tensor.is_floating_point() else tensor
