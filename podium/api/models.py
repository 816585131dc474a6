"""Models a Python program holds, on their way into workers and back.

Workers load models from folders, in this process or in others, so a model in memory is written to one first
(`<output_dir>/models/<role>`); a restart and a resume find it there. After the training the new weights are put into
the program's own objects. The master copy in between is float32.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from podium.errors import ModelError
from podium.models.value import CLASSIFIER_HEAD, HEAD_NAME
from podium.single_controller import LocalWorkerGroup

logger = logging.getLogger(__name__)


def as_folder(model: Any, tokenizer: Any, folder: Path, what: str) -> str:
    """The path of a model: as given, or that of the folder it is written to."""
    if isinstance(model, str | Path):
        return str(model)
    if hasattr(model, "peft_config"):
        raise ModelError(
            f"{what} is a PeftModel. Give the base model and peft_config=LoraConfig(...): the adapter is then made and "
            "trained here; or merge it first: model.merge_and_unload()"
        )
    if not hasattr(model, "save_pretrained") or not isinstance(model, nn.Module):
        raise ModelError(f"{what} is a {type(model).__name__}; give a transformers model or the path of one")
    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        raise ModelError(f"{what} has no weights yet (device meta); load it first")
    shutil.rmtree(folder, ignore_errors=True)
    writable: Any = model
    writable.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def trained_weights(trainer: Any) -> Iterator[tuple[str, Tensor]]:
    """The policy's tensors under their Hugging Face names, from wherever the workers are."""
    group = trainer.actor_rollout_wg
    if isinstance(group, LocalWorkerGroup):
        worker: Any = group.worker
        yield from worker.train_engine.weights(dtype=torch.float32)
        return
    with tempfile.TemporaryDirectory(dir=trainer.run_folder) as folder:
        group.save_checkpoint(folder)
        for file in sorted((Path(folder) / "hf").glob("*.safetensors")):
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  (safe_open is no mapping)
                    yield name, tensors.get_tensor(name)


@torch.no_grad()
def put_weights(model: nn.Module, weights: Iterator[tuple[str, Tensor]]) -> int:
    """Copy tensors into a model by name, in the model's own type and place; returns how many."""
    own = dict(model.state_dict(keep_vars=True))
    copied = 0
    for name, tensor in weights:
        target = own.get(name)
        if target is not None and target.shape == tensor.shape:
            target.copy_(tensor.to(target.device, target.dtype))
            copied += 1
    if not copied:
        logger.warning("none of the trained tensors is in the %s that was given", type(model).__name__)
    return copied


def critic_weights(trainer: Any) -> Iterator[tuple[str, Tensor]]:
    """The value model's tensors under a sequence classifier's names; only from a worker in this process."""
    group = trainer.critic_wg
    if isinstance(group, LocalWorkerGroup):
        worker: Any = group.worker
        for name, tensor in worker.engine.weights(dtype=torch.float32):
            yield name.replace(f"{HEAD_NAME}.", f"{CLASSIFIER_HEAD}."), tensor
