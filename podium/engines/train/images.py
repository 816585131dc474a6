"""Images in packed batches: they travel as a column of objects beside the tokens, and enter the model once per prompt.

The column rides in the TensorDict of rows, so that micro-batches take their images along. A pack knows which prompts
stand in it and where; the features of their images are put in the place of their image tokens by the forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch import Tensor, nn

from podium.errors import ModelError
from podium.models.vision import Images, image_token_id, is_vision_model, merge_images
from podium.protocol import DataProto

OBJECTS = "multi_modal_inputs"
"""The column of a batch."""
COLUMN = "images"
"""Its place among the rows of an engine."""


@dataclass(frozen=True)
class PackedImages:
    """The images of a pack's prompts, and the tokens of the pack that belong to those prompts."""

    images: list[Images]
    in_prompt: Tensor  # [T] bool: inside a prompt that has images

    def embed(self, body: nn.Module, config: Any, input_ids: Tensor) -> Tensor:
        """Embeddings [1, T, H] of `input_ids` [1, T]."""
        if not is_vision_model(config):
            raise ModelError(
                f"The rows have images and this {config.model_type} model takes text alone. Critic and reward model "
                "must take images too where the policy does; an estimator without a critic (grpo, rloo) needs none."
            )
        ids = input_ids[0]
        places = (self.in_prompt & (ids == image_token_id(config))).nonzero()[:, 0]
        return merge_images(body, ids, self.images, places)[None]


def with_images(rows: TensorDict, batch: DataProto) -> TensorDict:
    """The rows with the images of the batch, where it has any."""
    objects = batch.non_tensor_batch.get(OBJECTS)
    if objects is None or all(each is None for each in objects):
        return rows
    rows = rows.copy()
    rows.set(COLUMN, NonTensorStack(*(NonTensorData(each) for each in objects)))
    return rows


def pack_images(
    rows: TensorDict, members: Tensor, starts: Tensor, lengths: Tensor, num_tokens: int, device: torch.device
) -> PackedImages | None:
    """For prompts of the rows `members`, at `starts` of the pack, `lengths` tokens each, in packed order."""
    if COLUMN not in rows.keys():  # noqa: SIM118  (a TensorDict iterates over its rows)
        return None
    column: Sequence[Any] = rows.get(COLUMN).tolist()
    inside = np.zeros(num_tokens, dtype=bool)
    images = []
    for row, start, length in zip(members.tolist(), starts.tolist(), lengths.tolist(), strict=True):
        if column[row] is not None and length:
            images.append(column[row])
            inside[start : start + length] = True
    return PackedImages(images, torch.from_numpy(inside).to(device)) if images else None
