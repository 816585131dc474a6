"""A LLaVA small enough for a test, with a processor, made of nothing but the built-in tokenizer."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FEATURES = 4
"""Image tokens of a picture: 16 x 16 pixels in patches of 8."""


def save_tiny_llava(folder: Path) -> Path:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    from podium.models.load import load_tokenizer

    tokenizer: Any = load_tokenizer("builtin:tiny")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.chat_template = None
    size = {"height": 16, "width": 16}
    LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size=size, crop_size=size, do_resize=True),
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    ).save_pretrained(folder)
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=16,
        patch_size=8,
    )
    text = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(tokenizer),
        max_position_embeddings=256,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    torch.manual_seed(0)
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    return folder


def picture(red: int, green: int = 0, blue: int = 0) -> bytes:
    """A PNG of one colour."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (16, 16), (red, green, blue)).save(buffer, "PNG")
    return buffer.getvalue()


def score_and_update(rank: int, num_ranks: int, place: str, model: str, batch_file: str) -> None:
    """One rank's share of a batch through a train engine; leaves log-probs and gradient norm in `place`."""
    import pickle

    import torch.distributed as dist

    from podium.config.schema import ModelConfig, OptimConfig
    from podium.engines.train.torch import TorchEngine
    from podium.models.load import load_causal_lm

    torch.set_num_threads(1)
    if num_ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=num_ranks)
    batch = pickle.loads(Path(batch_file).read_bytes()).select_idxs(list(range(rank, 12, num_ranks)))
    engine = TorchEngine(load_causal_lm(ModelConfig(path=model)), optim=OptimConfig(lr=1e-2), total_steps=4)
    log_probs = engine.log_probs(batch, temperature=1.0)["log_probs"]

    def loss(outputs: Any, rows: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        return -(outputs.log_probs * rows["response_mask"]).sum(), {}

    metrics = engine.update(batch, loss, float(batch.tensors()["response_mask"].sum()))
    result = {
        "log_probs": float(log_probs.sum()),
        "grad_norm": metrics["grad_norm"].result(),
        "sharded": engine.sharded,
    }
    Path(place, f"{num_ranks}_{rank}.pkl").write_bytes(pickle.dumps(result))
    if num_ranks > 1:
        dist.destroy_process_group()
