"""The names that peft gives to a model's tensors, and the plain ones they had before."""

from __future__ import annotations

ADAPTER = "default"
"""The one adapter a model has here."""

BASE = ".base_layer."
"""Before the name of an adapted layer's own tensors."""
COPY = f".modules_to_save.{ADAPTER}."
ORIGINAL = ".original_module."
"""A layer that is trained in full stands beside the original."""


def plain_name(name: str) -> str:
    """A parameter's name in the plain model, which is its name in the model's folder."""
    return name.replace(COPY, ".").replace(BASE, ".").replace(ORIGINAL, ".")
