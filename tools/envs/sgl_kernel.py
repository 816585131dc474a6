"""Stands in for `sgl_kernel` where there is no CUDA: PyPI has its CUDA build only, yet SGLang imports it always.

Every name and submodule can be imported; a function raises when it is called. On a CPU SGLang's `torch_native`
attention and `pytorch` sampling call none of them.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any, NoReturn

__version__ = "0.4.10"  # what SGLang 0.5.23 asks for


def _absent(name: str) -> Any:
    if name.rpartition(".")[2].startswith("__"):
        raise AttributeError(name)

    def call(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(f"{name} is a CUDA kernel; this environment has none")

    return call


def __getattr__(name: str) -> Any:
    return _absent(f"sgl_kernel.{name}")


class _Submodules:
    """Finds every `sgl_kernel.x`."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> Any:
        if name.startswith("sgl_kernel."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda name: _absent(f"{spec.name}.{name}")  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None: ...


sys.meta_path.append(_Submodules())  # type: ignore[arg-type]
