"""Images in a language model: the vision tower's features in the place of the prompt's image tokens.

The text part runs packed like any other model; the vision tower sees whole pictures, so it keeps transformers' own
attention. Only image tokens of a prompt are replaced: one that the policy samples is a token like any other. Families
whose text part has positions of several axes (Qwen-VL) or looks both ways inside an image (Gemma 3) are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedConfig

from podium.errors import ModelError

Images = Mapping[str, NDArray[Any]]
"""What a processor makes of the pictures of one prompt: `pixel_values` and perhaps more."""


def is_vision_model(config: PreTrainedConfig) -> bool:
    return getattr(config, "vision_config", None) is not None


def image_token_id(config: PreTrainedConfig) -> int:
    """The token that stands for a feature of a picture."""
    names = ("image_token_id", "image_token_index")
    found = next((getattr(config, name) for name in names if getattr(config, name, None) is not None), None)
    if found is None:
        raise ModelError(f"The {config.model_type} model takes images and names no image token; it cannot be used.")
    return int(found)


def check_vision(config: PreTrainedConfig) -> None:
    """Refuse a vision model that packed calls would compute wrongly."""
    text: Any = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    if "mrope_section" in rope:
        raise ModelError(
            f"{config.model_type} gives image tokens positions of several axes, which packed calls do not have. "
            "Use a vision model with plain positions, such as LLaVA."
        )
    if config.model_type in ("gemma3", "paligemma"):
        raise ModelError(
            f"{config.model_type} lets the tokens of an image see each other in both directions, which packed calls do "
            "not have. Use a vision model without it, such as LLaVA."
        )


def attention_by_part(config: PreTrainedConfig, name: str) -> str | dict[str, str]:
    """Attention `name` for the text part; a vision tower keeps its own."""
    if not is_vision_model(config):
        return name
    return {"": name, **{part: "sdpa" if part != "text_config" else name for part in config.sub_configs}}


def image_features(body: nn.Module, images: Sequence[Images]) -> Tensor:
    """Features [F, H] of the pictures in order; `body` is the model without its head."""
    like = next(body.parameters())
    prompts = [{name: _tensor(array, like) for name, array in each.items()} for each in images]
    features: Any = body.get_image_features
    return torch.cat([_flat(features(**batch, return_dict=True).pooler_output) for batch in _together(prompts)])


def merge_images(body: nn.Module, input_ids: Tensor, images: Sequence[Images], places: Tensor) -> Tensor:
    """The embeddings of `input_ids` [T], with the features of `images` at `places` [F]; [T, H]."""
    table: Any = body.get_input_embeddings()  # type: ignore[operator]
    embeddings: Tensor = table(input_ids)
    features = image_features(body, images)
    if len(features) != len(places):
        raise ModelError(
            f"The vision tower gives {len(features)} features and the prompts have {len(places)} image tokens; model "
            "and processor do not belong together."
        )
    return embeddings.index_put((places,), features.to(embeddings.dtype))


def image_places(prompt: NDArray[np.int64], token: int) -> NDArray[np.int64]:
    """Where the image tokens of a prompt stand."""
    return np.flatnonzero(prompt == token)


def _together(prompts: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Prompts whose pictures have one shape go through the tower at once, where a picture is a row of its own."""
    pixels = [each["pixel_values"] for each in prompts if set(each) == {"pixel_values"}]
    alike = len(pixels) == len(prompts) and all(x.ndim == 4 and x.shape[1:] == pixels[0].shape[1:] for x in pixels)
    return [{"pixel_values": torch.cat(pixels)}] if alike else prompts


def _flat(features: Any) -> Tensor:
    """One row per feature, whether the family gives a tensor or a list of them."""
    parts = [features] if isinstance(features, Tensor) else list(features)
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


def _tensor(array: NDArray[Any], like: Tensor) -> Tensor:
    tensor = torch.as_tensor(np.asarray(array)).to(like.device)
    return tensor.to(like.dtype) if tensor.is_floating_point() else tensor
