"""A value model: a causal LM's backbone with one number per token in place of the vocabulary.

The head starts at zero, so that an untrained critic predicts zero everywhere and adds no noise to the advantages. The
model is kept as a Hugging Face-like folder: config.json and safetensors, with the backbone's usual tensor names and
`value_head.*` beside them. A reward model is the same thing, so that Hugging Face's sequence classifiers with one label
load too: their `score.weight` is the head. Training it is the train engine's work.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from podium.config.schema import ModelConfig
from podium.errors import ModelError
from podium.models.attention import AttentionPlan
from podium.models.load import empty_module, load_module, resolve_path

HEAD_NAME = "value_head"
CLASSIFIER_HEAD = "score"
WEIGHTS_FILE = "model.safetensors"


class ValueModel(nn.Module):
    """Backbone and scalar head. The backbone sits under its family's usual name (`model.`), so tensor names match."""

    def __init__(self, body: PreTrainedModel) -> None:
        super().__init__()
        self.body_name = body.base_model_prefix
        self.add_module(self.body_name, body)
        like = next(body.parameters())
        size = body.config.get_text_config().hidden_size
        device = "cpu" if like.is_meta else like.device  # the head has values even where the body has none yet
        self.value_head = nn.Linear(size, 1, device=device, dtype=like.dtype)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    @property
    def base_model(self) -> PreTrainedModel:
        body = self.get_submodule(self.body_name)
        assert isinstance(body, PreTrainedModel)
        return body

    @property
    def config(self) -> PreTrainedConfig:
        return self.base_model.config

    def forward(self, input_ids: Tensor, position_ids: Tensor, attention_plan: AttentionPlan) -> Tensor:
        """The value at each of T packed tokens; ids and positions [1, T] -> [1, T] float32."""
        hidden = self.base_model(
            input_ids=input_ids, position_ids=position_ids, attention_plan=attention_plan, use_cache=False
        ).last_hidden_state
        values: Tensor = self.value_head(hidden).squeeze(-1).float()
        return values

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.config.save_pretrained(folder)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def load_value_model(
    model: ModelConfig,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    empty: bool = False,
    needs_head: bool = False,
) -> ValueModel:
    """From a causal LM's folder (the head starts at zero), a sequence classifier's, or one `ValueModel.save` wrote.

    `empty`: where possible without the body's values, as in `load_causal_lm`. `needs_head`: refuse a folder without a
    trained head; right for a reward model, whose every score would be 0.
    """
    head = read_score_head(model) if needs_head else _read_head(Path(resolve_path(model.path)))
    value_model: ValueModel | None = None
    if empty:
        value_model = empty_module(AutoModel, model, dtype, within=ValueModel)
    if value_model is None:
        with _head_is_expected():
            value_model = ValueModel(load_module(AutoModel, model, dtype, device))
    value_model.eval()
    if head:
        _put_head(value_model.value_head, head, model.path)
    return value_model


def read_score_head(model: ModelConfig) -> dict[str, Tensor]:
    """The head of a reward model's folder; a ModelError where there is none to score with."""
    folder = Path(resolve_path(model.path))
    if not folder.exists():
        raise ModelError(
            f"The reward model {model.path!r} is no folder here, and its score head is read from a folder. Download it "
            f"(hf download {model.path} --local-dir reward-model) and name that folder in reward_model.model.path."
        )
    head = _read_head(folder)
    if head and head["weight"].any():
        return head
    lacks = "has a score head of zeros alone" if head else "has no score head (no tensor score.* or value_head.*)"
    raise ModelError(
        f"The reward model {model.path!r} {lacks}: it would give every response the score 0. Give "
        "reward_model.model.path a folder that `podium train-reward` wrote, or a sequence classifier with one label."
    )


@contextmanager
def _head_is_expected() -> Iterator[None]:
    """Transformers reports the head as a tensor too many; a report of missing ones still comes through."""
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(_says_more)
    try:
        yield
    finally:
        logger.removeFilter(_says_more)


def _says_more(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    return "LOAD REPORT" not in text or any(word in text for word in ("MISSING", "MISMATCH", "CONVERSION"))


def _put_head(layer: nn.Linear, head: dict[str, Tensor], path: str) -> None:
    weight = head["weight"]
    if weight.shape != layer.weight.shape:
        raise ModelError(
            f"The head of {path!r} gives {weight.shape[0]} numbers per token of size {weight.shape[1]}; a value or "
            f"reward model gives one, of size {layer.in_features}. Use a model with num_labels=1."
        )
    layer.load_state_dict({"bias": torch.zeros(1)} | head)


def _read_head(folder: Path) -> dict[str, Tensor]:
    """Our own head, or else that of a sequence classifier."""
    return _tensors_under(folder, f"{HEAD_NAME}.") or _tensors_under(folder, f"{CLASSIFIER_HEAD}.")


def _tensors_under(folder: Path, prefix: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            found |= {
                name.removeprefix(prefix): tensors.get_tensor(name)
                for name in tensors.keys()  # noqa: SIM118  (safe_open is no mapping)
                if name.startswith(prefix)
            }
    return found
