"""Models in memory, rows and quick arguments for the Python door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from podium.data.tasks import get_task
from podium.models.load import load_tokenizer, resolve_path

TINY = resolve_path("builtin:tiny")


@pytest.fixture
def tokenizer() -> Any:
    return load_tokenizer("builtin:tiny")


@pytest.fixture
def policy() -> Any:
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)


@pytest.fixture
def other_reference(policy: Any) -> Any:
    """A model from which the policy differs."""
    other = AutoModelForCausalLM.from_pretrained(policy.name_or_path, dtype=torch.float32)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    return other


def classifier(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return AutoModelForSequenceClassification.from_pretrained(TINY, num_labels=1, dtype=torch.float32)


@pytest.fixture
def sums() -> list[dict[str, Any]]:
    """Prompts with their answers in a free column."""
    rows = get_task("addition").rows("train", 64, 0)
    return [{"prompt": row["prompt"], "answer": row["reward_model"]["ground_truth"]} for row in rows]


@pytest.fixture
def quick(tmp_path: Path) -> dict[str, Any]:
    return {
        "output_dir": str(tmp_path / "run"),
        "per_device_train_batch_size": 16,
        "max_steps": 2,
        "learning_rate": 1e-4,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "save_strategy": "no",
        "settings": ["trainer.logger=[]"],
    }
