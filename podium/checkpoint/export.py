"""A trained model as a Hugging Face folder: safetensors, config, tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor


def export_hf(
    weights: Iterable[tuple[str, Tensor]], config: Any, tokenizer: Any, folder: Path, dtype: Any = None
) -> None:
    """Write what `from_pretrained` reads. Tied tensors are stored once."""
    folder.mkdir(parents=True, exist_ok=True)
    tied = getattr(config, "tie_word_embeddings", False)
    tensors = {
        name: tensor.detach().to("cpu", dtype=dtype, copy=True).contiguous()
        for name, tensor in weights
        if not (tied and name == "lm_head.weight")
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
