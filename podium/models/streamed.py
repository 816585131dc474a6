"""Models without their values, and the files the values come from, tensor by tensor.

A rank that keeps a shard of each parameter need not hold the model: inside `parameters_on_meta` its parts are made
without memory, and `fill` gives one part its values when its turn comes to be sharded. Only safetensors folders
whose tensor names are the module's own can be read so; for anything else (`can_stream` says no) the model is loaded
whole. When a part is filled is the train engine's matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from podium.models.names import plain_name

INDEX = "model.safetensors.index.json"
META = torch.device("meta")
FILES = "weight_files"
"""The attribute of an empty module that says where its values are."""


class WeightFiles:
    """The tensors of a safetensors folder, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = folder / INDEX
        if index.is_file():
            self.file_of: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        else:
            self.file_of = {}
            for path in sorted(folder.glob("*.safetensors")):
                with safe_open(path, framework="pt") as tensors:
                    self.file_of |= dict.fromkeys(tensors.keys(), path.name)

    def shape(self, name: str) -> list[int]:
        with safe_open(self.folder / self.file_of[name], framework="pt") as tensors:
            shape: list[int] = tensors.get_slice(name).get_shape()
        return shape

    def read(self, name: str) -> Tensor:
        with safe_open(self.folder / self.file_of[name], framework="pt") as tensors:
            tensor: Tensor = tensors.get_tensor(name)
        return tensor


def can_stream(module: nn.Module, files: WeightFiles) -> bool:
    """Whether the files have every parameter that has no value yet, under its own name and in its shape."""
    empty = [(plain_name(name), p) for name, p in module.named_parameters() if p.device == META]
    return all(name in files.file_of and files.shape(name) == list(p.shape) for name, p in empty)


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Inside, modules are made without memory for their parameters; buffers are real."""
    register = nn.Module.register_parameter

    def without_memory(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device != META:  # a tied one is there already
            parameter = nn.Parameter(parameter.to(META), parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = without_memory  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def weight_files(module: nn.Module) -> WeightFiles | None:
    """Where the values of an empty module are; None for one that has them."""
    found = next((getattr(part, FILES) for part in module.modules() if hasattr(part, FILES)), None)
    assert found is None or isinstance(found, WeightFiles)
    return found


def fill(part: nn.Module, names: dict[int, str], files: WeightFiles, device: torch.device) -> None:
    """Give the parameters of `part` that have none their values. `names`: of each parameter of the model, by its id."""
    filled: dict[int, nn.Parameter] = {}
    for owner in part.modules():
        for key, parameter in list(owner._parameters.items()):
            if parameter is None or parameter.device != META:
                continue
            if id(parameter) not in filled:  # tied parameters stay one
                value = files.read(plain_name(names[id(parameter)])).to(device, parameter.dtype)
                filled[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
            owner._parameters[key] = filled[id(parameter)]


def parameter_names(module: nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in module.named_parameters()}


def attach(module: Any, files: WeightFiles) -> None:
    setattr(module, FILES, files)
