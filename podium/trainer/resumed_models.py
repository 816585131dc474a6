"""Loading a checkpoint's models into the workers, after a look at whether they can fit.

A checkpoint of another model, one with other adapters, or one without a critic is refused with what it is and what to
do; torch would answer with pages. What else a resumed run needs is in resume.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from podium.config.schema import Config
from podium.errors import CheckpointError, WorkerDied, WorkerError
from podium.models.load import load_config

SHAPE = (
    *("model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size", "num_experts", "num_local_experts"),
)
"""The settings of a model that its tensors' shapes follow from."""
WAY_OUT = (
    "set trainer.resume_mode=disable to start anew here (the old record is kept under previous/), or another "
    "trainer.default_local_dir"
)


def load_models(path: Path, config: Config, actor: Any, critic: Any | None) -> None:
    """Give the workers what the checkpoint holds."""
    check_model(path, config)
    if critic is not None and not (path / "critic").is_dir():
        raise CheckpointError(
            f"{path} was written without a critic, and algorithm.adv_estimator={config.algorithm.adv_estimator} "
            f"trains one; {WAY_OUT}"
        )
    actor.load_checkpoint(str(path))
    if critic is not None:
        _load_critic(path, config, critic)


def check_model(path: Path, config: Config) -> None:
    """Raise unless the checkpoint's policy has the shape of the configured model."""
    model, saved = config.actor_rollout_ref.model, _read(path / "hf" / "config.json")
    if saved is None:
        return
    ours: Any = load_config(model.path, model.trust_remote_code)
    theirs: Any = type(ours).from_dict(saved) if saved.get("model_type") == ours.model_type else None
    wanted = _shape(ours.get_text_config().to_dict())
    found = {"model_type": saved.get("model_type")} if theirs is None else _shape(theirs.get_text_config().to_dict())
    differing = [key for key in found if key in wanted and found[key] != wanted[key]]
    if differing:
        listed = ", ".join(f"{key} {found[key]} -> {wanted[key]}" for key in differing)
        raise CheckpointError(
            f"{path} holds another model than actor_rollout_ref.model.path={model.path}: {listed}; {WAY_OUT}"
        )
    adapter = _read(path / "hf_adapter" / "adapter_config.json")
    rank = 0 if adapter is None else int(adapter.get("r", 0))
    if rank != model.lora_rank:
        raise CheckpointError(
            f"{path} was written with actor_rollout_ref.model.lora_rank={rank}, and {model.lora_rank} is set; set "
            f"{rank} to go on, or {WAY_OUT}"
        )


def _load_critic(path: Path, config: Config, critic: Any) -> None:
    try:
        critic.load_checkpoint(str(path))
    except (CheckpointError, WorkerError) as error:
        if isinstance(error, WorkerDied) or "does not fit this model" not in str(error):
            raise
        raise CheckpointError(
            f"{path / 'critic'} holds another model than critic.model.path={config.critic.model.path}; {WAY_OUT}"
        ) from error


def _shape(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: settings[key] for key in SHAPE if settings.get(key) is not None}


def _read(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}; {WAY_OUT}") from error
    return content
