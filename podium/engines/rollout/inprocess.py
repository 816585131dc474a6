"""An engine that runs a Hugging Face module of this process: its weights, its version, its mode.

The module may be the trainer's own. Its training flags are put back as they were after generating, and nothing else of
it is changed but by `load_weights`. How tokens are made is left to native/engine.py and hf.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from podium.engines.rollout.base import SamplingParams, make_probe_tokens
from podium.engines.rollout.front import RequestFront
from podium.engines.rollout.request import Array
from podium.engines.rollout.stopping import StopRules
from podium.engines.rollout.weights import load_tensors, named_tensors
from podium.errors import RolloutError
from podium.models.load import output_head
from podium.models.vision import image_token_id, is_vision_model


class ModuleEngine(RequestFront):
    """Holds `module` and the version of its weights."""

    def __init__(self, module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> None:
        super().__init__()
        self.module = module
        self.version = 0
        self.vocab_size = output_head(module).out_features
        self.device = next(module.parameters()).device
        ends = tuple(token for token in eos_token_ids(module, tokenizer) if token < self.vocab_size)
        self.rules = StopRules(self.vocab_size, ends, tokenizer)
        limit = getattr(module.config.get_text_config(), "max_position_embeddings", None)
        self.max_model_len: int | None = limit
        self.image_token = image_token_id(module.config) if is_vision_model(module.config) else None
        self._unusable: str | None = None
        self._owns_weights = False
        self._away: dict[Tensor, Tensor] = {}

    # ---- requests

    def _admissible(self, prompt: Array, params: SamplingParams) -> None:
        low, high = int(prompt.min()), int(prompt.max())
        if low < 0 or high >= self.vocab_size:
            bad = low if low < 0 else high
            raise RolloutError(
                f"Token {bad} of a prompt is outside the model's vocabulary of {self.vocab_size} tokens; the tokenizer "
                "and the model do not belong together."
            )
        self.rules.check(params)
        total = prompt.size + params.max_tokens
        if self.max_model_len is not None and total > self.max_model_len:
            raise RolloutError(
                f"A prompt of {prompt.size} tokens with max_tokens={params.max_tokens} makes {total}; the model knows "
                f"{self.max_model_len} positions. Lower data.max_prompt_length or data.max_response_length."
            )

    def _refuse_unusable(self) -> None:
        if self._unusable is not None:
            raise RolloutError(f"The engine has no usable weights: {self._unusable} Publish a complete set first.")

    @contextmanager
    def _generating(self) -> Iterator[None]:
        """Eval mode for the parts that are in training mode, for as long as tokens are made."""
        if not self.module.training:
            yield
            return
        parts = [part for part in self.module.modules() if part.training]
        for part in parts:
            part.training = False
        try:
            yield
        finally:
            for part in parts:
                part.training = True

    # ---- weights

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copy a complete set into the module. A set that is refused leaves the engine unusable until a good one."""
        with self._lock:
            self._drop_computed()
            self._bring_back_weights()
            self._owns_weights = True  # nobody copies into the trainer's own module
            self._unusable = f"loading version {version} did not finish."
            load_tensors(self.module, weights)
            self._unusable = None
            self.version = version

    def set_version(self, version: int) -> None:
        """The module's weights were changed in place, by the trainer that shares it."""
        with self._lock:
            self._drop_computed()
            self.version = version

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return named_tensors(self.module)

    def _put_weights_away(self) -> None:
        """Move a copy that only this engine uses from a GPU to the host."""
        if self._owns_weights and self.device.type == "cuda" and not self._away:
            for parameter in self.module.parameters():
                self._away[parameter] = parameter.data.to("cpu")
                parameter.data = parameter.data.new_empty(0)

    def _bring_back_weights(self) -> None:
        for parameter, data in self._away.items():
            parameter.data = data.to(self.device)
        self._away = {}

    def _drop_computed(self) -> None:
        """Forget whatever depends on the weights."""

    def probe_tokens(self) -> list[int]:
        return make_probe_tokens(self.vocab_size)


def eos_token_ids(module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """Every token the model's folder calls end-of-sequence."""
    ids: set[int] = set()
    for source in (module.generation_config, module.config.get_text_config(), tokenizer):
        value = getattr(source, "eos_token_id", None)
        ids.update([value] if isinstance(value, int) else value or [])
    return tuple(sorted(ids))
