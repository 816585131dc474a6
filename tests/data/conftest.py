from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

import podium

TINY = Path(podium.__file__).parent / "models" / "tiny"


@pytest.fixture(scope="session")
def tiny_folder():
    return TINY


@pytest.fixture(scope="session")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY)
