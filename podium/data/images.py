"""Rows with images: pictures in any form files hold them, and a prompt that a processor makes tokens and pixels of.

A message's text has `<image>` where a picture stands (verl's form), or its content is a list of parts with
`{"type": "image"}` among them (TRL's). The processor writes as many image tokens as the picture has features; pixels
travel beside the tokens as arrays, `multi_modal_inputs`, and the model merges them (models/vision.py). A prompt with
images is never cut: a picture without all its tokens means nothing.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jinja2.exceptions import TemplateError
from numpy.typing import NDArray

from podium.data.prompts import Message, PromptError, is_unfinished
from podium.errors import ConfigError

Arrays = dict[str, NDArray[Any]]

PLACEHOLDER = "<image>"
TEXT_OUTPUTS = ("input_ids", "attention_mask")


def load_images(column: Any) -> list[Any]:
    """The pictures of a row: bytes, paths, `{bytes, path}` as verl and `datasets` store them, or PIL images."""
    items = column if isinstance(column, Sequence) and not isinstance(column, str | bytes) else [column]
    return [_load_image(item, number) for number, item in enumerate(items)]


def _load_image(item: Any, number: int) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigError("rows with images need Pillow; install it with: pip install 'podium[vision]'") from error
    if isinstance(item, Image.Image):
        return item.convert("RGB")
    if isinstance(item, Mapping):
        item = next((item[key] for key in ("bytes", "path", "image") if item.get(key) is not None), None)
    if not isinstance(item, bytes | str | Image.Image):
        raise PromptError(f"image {number} is {type(item).__name__}; it must be bytes, a path, or {{bytes, path}}")
    try:
        with Image.open(io.BytesIO(item) if isinstance(item, bytes) else item) as image:  # type: ignore[arg-type]
            return image.convert("RGB")
    except (OSError, ValueError) as error:
        raise PromptError(f"image {number} cannot be read: {error}") from error


def place_images(messages: Sequence[Message], num_images: int) -> list[Message]:
    """The conversation with its content as parts; images without a place stand before the first user's words."""
    placed = [{**message, "content": _parts(message["content"])} for message in messages]
    places = sum(part["type"] == "image" for message in placed for part in message["content"])
    if places == 0:
        first = next((message for message in placed if message["role"] == "user"), placed[0])
        first["content"] = [{"type": "image"}] * num_images + first["content"]
    elif places != num_images:
        raise PromptError(f"the prompt has {places} places for images and the row has {num_images} images")
    return placed


def _parts(content: Any) -> list[dict[str, Any]]:
    if not isinstance(content, str):
        return [{"type": "image"} if part.get("type") == "image" else dict(part) for part in content]
    parts: list[dict[str, Any]] = []
    for number, text in enumerate(content.split(PLACEHOLDER)):
        parts += [{"type": "image"}] if number else []
        parts += [{"type": "text", "text": text}] if text else []
    return parts


def encode_with_images(
    processor: Any,
    messages: Sequence[Message],
    images: Sequence[Any],
    tools: list[dict[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[list[int], Arrays]:
    """Prompt tokens with the image tokens among them, and the arrays that the model needs beside them."""
    placed = place_images(messages, len(images))
    unfinished = is_unfinished(messages)
    try:
        text = processor.apply_chat_template(
            placed,
            tools=tools,
            add_generation_prompt=not unfinished,
            continue_final_message=unfinished,
            tokenize=False,
            **(options or {}),
        )
        encoded = processor(text=[text], images=list(images), add_special_tokens=False, return_tensors="np")
    except (TemplateError, ValueError) as error:
        raise PromptError(f"the processor refused the conversation: {error}") from error
    if "token_type_ids" in encoded or "mm_token_type_ids" in encoded:
        raise ConfigError(
            f"{type(processor).__name__} marks image tokens, for attention in both directions or for positions of "
            "several axes, which packed training does not have. Use a family without them, such as LLaVA."
        )
    arrays = {name: np.asarray(value) for name, value in encoded.items() if name not in TEXT_OUTPUTS}
    return [int(token) for token in encoded["input_ids"][0]], arrays


def image_key(arrays: Arrays | None) -> int:
    """A number that tells apart prompts whose tokens are equal and whose images are not; 0: no image."""
    if arrays is None:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name}{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return int.from_bytes(digest.digest(), "little") >> 1
