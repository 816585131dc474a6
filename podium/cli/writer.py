"""A model that writes, for the commands that show what it says."""

from __future__ import annotations

from typing import Any

from podium.config.schema import ModelConfig, RolloutConfig
from podium.data.prompts import build_messages, encode_messages
from podium.engines.rollout import make_rollout_engine
from podium.engines.rollout.base import SamplingParams
from podium.errors import ConfigError
from podium.models.load import load_causal_lm, load_tokenizer, resolve_dtype
from podium.serving.server import find_model
from podium.trainer.main_ppo import resolve_device


class Writer:
    def __init__(self, place: str, step: int | None = None, device: str = "auto") -> None:
        """`place`: a run folder, a checkpoint, a Hugging Face folder or name, or builtin:tiny."""
        self.path, device = find_model(place, step), resolve_device(device)
        self.tokenizer: Any = load_tokenizer(self.path)
        dtype = resolve_dtype("auto", device)
        module = load_causal_lm(ModelConfig(path=self.path), dtype, device)
        self.engine = make_rollout_engine(RolloutConfig(max_num_seqs=64), module, self.tokenizer, dtype)

    def encode(self, prompt: Any, raw: bool = False) -> list[int]:
        """The prompt's tokens, text or messages, through the chat template unless `raw`."""
        if raw:
            return [int(token) for token in self.tokenizer.encode(prompt)]
        return encode_messages(self.tokenizer, build_messages(prompt))

    def answer(self, prompts: list[list[int]], params: SamplingParams, n: int, seed: int) -> list[list[str]]:
        """The texts written for each prompt."""
        if n < 1:
            raise ConfigError(f"--n={n} must be at least 1")
        if n > 1 and params.temperature == 0:
            raise ConfigError(f"--n={n} greedy samples would be equal; give a --temperature above 0")
        seeds = [seed + place for place in range(len(prompts))]
        groups = self.engine.generate(prompts, params, n=n, seeds=seeds)
        return [[self.tokenizer.decode(c.token_ids, skip_special_tokens=True) for c in group] for group in groups]
