"""Models and tokenizers from a Hugging Face folder or a GGUF file, ready for packed calls.

A loaded model has Podium's attention installed, no dropout, and no token whose embedding is kept from learning (no
padding token ever reaches it, so a padding id in the data is a real token). Weights come from safetensors or GGUF
(dequantized; its tokenizer comes from the same file), and code from the folder runs only with `trust_remote_code`. This
module does not shard, cast for speed or train: that is the train engine's work.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from podium.config.schema import ModelConfig
from podium.errors import ModelError
from podium.models.attention import PackedAttention, install_attention
from podium.models.hub import hub_options
from podium.models.streamed import WeightFiles, attach, can_stream, parameters_on_meta
from podium.models.vision import check_vision, is_vision_model

BUILTIN_PREFIX = "builtin:"
GGUF_SUFFIX = ".gguf"

PLAIN_HEADS = frozenset({"llama", "qwen2", "qwen3", "mistral", "gemma", "gemma3_text", "phi", "phi3", "granite"})
"""Model types whose logits are known to be `LogitTransform(head(hidden))`; others are checked by a call when loaded."""

SAFE = {"use_safetensors": True}
"""No weights by pickle."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class LogitTransform:
    """What a family does to the head's output: `scale · x`, then a soft cap `cap · tanh(x / cap)`."""

    scale: float = 1.0
    softcap: float | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


def resolve_path(path: str) -> str:
    """`builtin:tiny` as its folder; a local folder or GGUF file as it is (a folder that holds nothing but one GGUF file
    as that file); anything else is a name on the Hugging Face hub."""
    if path.startswith(BUILTIN_PREFIX):
        name = path.removeprefix(BUILTIN_PREFIX)
        here = Path(__file__).parent
        known = sorted(f"{BUILTIN_PREFIX}{config.parent.name}" for config in here.glob("*/config.json"))
        if path not in known:
            raise ModelError(f"There is no built-in model {path!r}. Built in: {', '.join(known) or 'none'}.")
        return str(here / name)
    folder = Path(path).expanduser()
    if is_gguf(path) and folder.is_file():
        return str(folder)
    if folder.is_dir():
        return _model_in(folder, path)
    if not path or folder.is_absolute() or path.startswith((".", "~")) or path.count("/") > 1:
        raise ModelError(
            f"The model {path!r} does not exist. Give a Hugging Face folder, a GGUF file, or {BUILTIN_PREFIX}tiny."
        )
    return path


def is_gguf(path: str) -> bool:
    return path.endswith(GGUF_SUFFIX)


def _model_in(folder: Path, path: str) -> str:
    if (folder / "config.json").is_file():
        return str(folder)
    files = sorted(folder.glob(f"*{GGUF_SUFFIX}"))
    if len(files) > 1:
        raise ModelError(f"The folder {path!r} has {len(files)} GGUF files. Name one of them, such as {files[0]}.")
    if not files:
        raise ModelError(
            f"The model folder {path!r} has no config.json. Give a folder in Hugging Face format, or a GGUF file."
        )
    return str(files[0])


def resolve_dtype(dtype: str, device: torch.device | str) -> torch.dtype:
    """The compute type that `model.dtype` means on `device`: auto is bfloat16 on a GPU and float32 on a CPU."""
    if dtype == "auto":
        return torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
    if dtype not in DTYPES:
        raise ModelError(f"model.dtype is {dtype!r}; allowed are auto, {', '.join(DTYPES)}.")
    return DTYPES[dtype]


def load_config(path: str, trust_remote_code: bool = False) -> PreTrainedConfig:
    config: PreTrainedConfig = _read(AutoConfig.from_pretrained, path, trust_remote_code=trust_remote_code)
    return config


def load_tokenizer(path: str, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The folder's tokenizer; one without a padding token pads with its end-of-sequence token."""
    tokenizer: PreTrainedTokenizerBase = _read(AutoTokenizer.from_pretrained, path, trust_remote_code=trust_remote_code)
    if tokenizer.eos_token_id is None:
        raise ModelError(f"The tokenizer of {path!r} has no end-of-sequence token. Set eos_token in its files.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_causal_lm(
    model: ModelConfig, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", empty: bool = False
) -> PreTrainedModel:
    """The causal LM of `model.path` with its parameters in `dtype` (float32: master weights), in eval mode.

    `empty`: where possible without values, which an engine of several ranks reads block by block (streamed.py).
    """
    module: PreTrainedModel | None = None
    if empty:
        module = empty_module(AutoModelForCausalLM, model, dtype, within=lambda module: module)
    if module is not None:
        return module
    module = load_module(_language_class(model), model, dtype, device)
    output_head(module)
    if module.config.model_type not in PLAIN_HEADS:
        check_head(module)
    return module


def _language_class(model: ModelConfig) -> Any:
    """The class that writes text; for a vision model the one that also sees."""
    if is_gguf(resolve_path(model.path)):
        return AutoModelForCausalLM
    config = load_config(model.path, model.trust_remote_code)
    if not is_vision_model(config):
        return AutoModelForCausalLM
    check_vision(config)
    return AutoModelForImageTextToText


def load_processor(path: str, trust_remote_code: bool = False) -> Any | None:
    """What makes tokens and pixels of a vision model's prompts; None for a model of text alone."""
    if is_gguf(resolve_path(path)) or not is_vision_model(load_config(path, trust_remote_code)):
        return None
    return _read(AutoProcessor.from_pretrained, path, trust_remote_code=trust_remote_code)


def load_module(auto_class: Any, model: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> PreTrainedModel:
    """The folder's weights as an `auto_class` module, prepared for packed calls."""
    module: PreTrainedModel = _read(
        auto_class.from_pretrained, model.path, dtype=dtype, trust_remote_code=model.trust_remote_code, **SAFE
    )
    prepare(module, gradient_checkpointing=model.enable_gradient_checkpointing)
    module.to(device)  # type: ignore[arg-type]
    return module


def empty_module(auto_class: Any, model: ModelConfig, dtype: torch.dtype, within: Callable[[Any], Any]) -> Any:
    """`within(module)` without values; None where the folder's tensors cannot be read one by one into this module."""
    folder = Path(resolve_path(model.path))
    if not folder.is_dir() or model.trust_remote_code:
        return None
    config = load_config(model.path)
    if config.model_type not in PLAIN_HEADS:
        return None
    with parameters_on_meta():
        module: PreTrainedModel = auto_class.from_config(config, dtype=dtype)
    files, whole = WeightFiles(folder), within(module)
    if not can_stream(whole, files):
        return None
    prepare(module, gradient_checkpointing=model.enable_gradient_checkpointing)
    attach(module, files)
    return whole


def prepare(module: PreTrainedModel, gradient_checkpointing: bool = False) -> None:
    """Packed attention, no dropout, no embedding row shut out of learning, eval mode; in place."""
    install_attention(module)
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        elif isinstance(part, nn.Embedding):
            part.padding_idx = None
    if gradient_checkpointing:
        if not module.supports_gradient_checkpointing:
            raise ModelError(
                f"{type(module).__name__} does not support gradient checkpointing. "
                "Set model.enable_gradient_checkpointing=false."
            )
        module.gradient_checkpointing_enable({"use_reentrant": False})
    module.eval()


def backbone(model: nn.Module) -> nn.Module:
    """The part from embeddings to last hidden state, of a causal LM or of a ValueModel."""
    body = model.base_model
    assert isinstance(body, nn.Module)
    return body


def output_head(model: PreTrainedModel) -> nn.Linear:
    """The layer from hidden state to vocabulary."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise ModelError(
            f"{type(model).__name__} has no linear output head (it has {type(head).__name__}). "
            "Actor, rollout and reference need a causal language model."
        )
    return head


def logit_transform(model: PreTrainedModel) -> LogitTransform:
    """Logits are `logit_transform(model)(output_head(model)(hidden))`."""
    config = model.config.get_text_config()
    if (divisor := getattr(config, "logits_scaling", None)) is not None:  # Granite
        return LogitTransform(scale=1.0 / divisor)
    if (factor := getattr(config, "logit_scale", None)) is not None:  # Cohere
        return LogitTransform(scale=float(factor))
    return LogitTransform(softcap=getattr(config, "final_logit_softcapping", None))  # Gemma


@torch.no_grad()
def check_head(model: PreTrainedModel) -> None:
    """Raise when the family does something to its logits that `logit_transform` does not know."""
    head = output_head(model)
    device = head.weight.device
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    ids = torch.tensor([[0, 1]], device=device) % head.out_features
    positions = torch.arange(2, device=device)[None]
    try:
        plan = PackedAttention([2], device)
        logits = model(input_ids=ids, position_ids=positions, attention_plan=plan, use_cache=False).logits
    finally:
        hook.remove()
    ours = logit_transform(model)(nn.functional.linear(seen[0], head.weight, head.bias))
    if not torch.allclose(ours.float(), logits.float(), atol=1e-3, rtol=1e-3):
        raise ModelError(
            f"{type(model).__name__} changes its logits after the output head in a way Podium does not know, so "
            "log-probs would be wrong. Use another family, or extend logit_transform in podium/models/load.py."
        )


def _read(loader: Callable[..., Any], path: str, **options: Any) -> Any:
    """Call a transformers loader; what it cannot read becomes a ModelError that names the model."""
    transformers_logging.disable_progress_bar()  # it would break into the run's own console
    place = resolve_path(path)
    if is_gguf(place):
        return _read_gguf(loader, Path(place), options)
    if not Path(place).is_dir():
        options |= hub_options(place)
    try:
        return loader(place, **options)
    except ModelError:
        raise
    except (OSError, ValueError, ImportError) as error:
        raise ModelError(f"The model {path!r} cannot be loaded: {error}") from error


def _read_gguf(loader: Callable[..., Any], file: Path, options: dict[str, Any]) -> Any:
    options = {key: value for key, value in options.items() if key not in SAFE} | {"gguf_file": file.name}
    try:
        with redirect_stderr(StringIO()):  # a progress bar that no setting turns off
            return loader(str(file.parent), **options)
    except ImportError as error:
        raise ModelError(f"The model {str(file)!r} needs the package gguf: pip install 'podium[gguf]'.") from error
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"The GGUF file {str(file)!r} cannot be loaded: {error}") from error
