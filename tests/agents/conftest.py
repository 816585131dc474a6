from __future__ import annotations

from typing import Any

import pytest

from podium.models.load import load_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """One token per byte."""
    return load_tokenizer("builtin:tiny")
