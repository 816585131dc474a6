"""A trained model as a Hugging Face folder: safetensors, config, generation config, tokenizer.

`export_hf` writes one from named tensors, `export_adapter` a LoRA adapter as peft reads it; `export_checkpoint` takes
what lies in a checkpoint as `hf/` or `hf_adapter/` and gives it another number type where asked.
"""

from __future__ import annotations

import copy
import json
import logging
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
from podium.models.streamed import INDEX

logger = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
SHARD_BYTES = 5 << 30
"""About how large one file of weights becomes; a single tensor is never cut."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def export_hf(
    weights: Iterable[tuple[str, Tensor]],
    config: Any,
    tokenizer: Any,
    folder: Path,
    generation: GenerationConfig | None = None,
) -> None:
    """Write what `from_pretrained` reads, from a stream that is taken as it comes. Tied tensors are stored once.

    `generation`: the defaults the model came with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    tied = getattr(config, "tie_word_embeddings", False)
    _write_shards(((name, tensor) for name, tensor in weights if not (tied and name == "lm_head.weight")), folder)
    _write_generation_config(generation, config, tokenizer, folder)
    tokenizer.save_pretrained(folder)


def _write_shards(weights: Iterable[tuple[str, Tensor]], folder: Path) -> None:
    """Files of about SHARD_BYTES and an index of them, or one file where that is enough."""
    shards: list[tuple[Path, list[str]]] = []
    held: dict[str, Tensor] = {}
    total = size = 0

    def flush() -> None:
        path = folder / f"model-{len(shards) + 1:05d}.safetensors"
        _save(held, path, like=folder / "config.json")
        shards.append((path, list(held)))
        held.clear()

    for name, tensor in weights:
        num_bytes = tensor.numel() * tensor.element_size()
        if held and size + num_bytes > SHARD_BYTES:
            flush()
            size = 0
        held[name] = tensor.detach().cpu().contiguous()
        size, total = size + num_bytes, total + num_bytes
    flush()
    if len(shards) == 1:
        shards[0][0].rename(folder / WEIGHTS)
        return
    weight_map: dict[str, str] = {}
    for path, names in shards:
        path = path.rename(folder / f"{path.stem}-of-{len(shards):05d}.safetensors")
        weight_map |= dict.fromkeys(names, path.name)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")


def _save(tensors: dict[str, Tensor], path: Path, like: Path) -> None:
    """As readable as the file `like`: safetensors alone would keep it to its owner."""
    save_file(tensors, path, metadata={"format": "pt"})
    shutil.copymode(like, path)


def _write_generation_config(generation: GenerationConfig | None, config: Any, tokenizer: Any, folder: Path) -> None:
    """The defaults the model came with, and every token that ends a response."""
    words = getattr(tokenizer, "tokenizer", tokenizer)  # a vision model's processor has one, and is saved with it
    for settings in (copy.deepcopy(generation), GenerationConfig.from_model_config(config)):
        if settings is None:
            continue
        known = settings.eos_token_id
        ids = [words.eos_token_id, *(known if isinstance(known, list) else [known])]
        ends = list(dict.fromkeys(token for token in ids if token is not None))
        settings.eos_token_id = ends if len(ends) > 1 else next(iter(ends), None)
        settings.pad_token_id = words.pad_token_id
        try:
            settings.save_pretrained(folder)
            return
        except ValueError as error:  # transformers reads settings that it refuses to write
            logger.warning("The model's generation settings contradict themselves and are left out: %s", error)


def export_adapter(tensors: Mapping[str, Tensor], module: nn.Module, folder: Path) -> None:
    """Write what `PeftModel.from_pretrained` reads; `tensors` have peft's names."""
    folder.mkdir(parents=True, exist_ok=True)
    save_adapter_config(module, folder)
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    _save(held, folder / "adapter_model.safetensors", like=folder / "adapter_config.json")


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
        _give_dtype(source, target, dtype)
    return target


def _give_dtype(source: Path, target: Path, dtype: str) -> None:
    total = 0
    for path in source.glob("*.safetensors"):
        tensors = {name: _cast(tensor, DTYPES[dtype]) for name, tensor in load_file(path).items()}
        _save(tensors, target / path.name, like=path)
        total += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if (path := target / INDEX).is_file():
        index = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(index | {"metadata": {"total_size": total}}, indent=2), encoding="utf-8")
    if (path := target / "config.json").is_file():  # an adapter's configuration names no number type
        config = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(config | {"dtype": dtype}, indent=2), encoding="utf-8")


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype).contiguous() if tensor.is_floating_point() else tensor
