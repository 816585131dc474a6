"""Runs with adapters: one base model in memory, resumed exactly, exported merged and alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from podium.cli.main import main
from podium.config.schema import Config
from podium.models.load import load_causal_lm, resolve_path
from podium.workers import actor_rollout_ref, rollout_engines

LORA = (
    *("actor_rollout_ref.model.lora_rank=4", "critic.model.lora_rank=2", "algorithm.adv_estimator=gae"),
    *("actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.optim.lr=1e-2", "trainer.save_freq=1"),
)


def test_a_run_with_adapters_resumes_exactly_and_exports_both_forms(
    run: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    from peft import PeftModel

    straight = run(*LORA, "trainer.total_training_steps=3", folder="straight")
    run(*LORA, "trainer.total_training_steps=2", folder="parts")
    run(*LORA, "trainer.total_training_steps=3", folder="parts")
    ends = [tmp_path / name / "checkpoints" / "global_step_3" for name in ("straight", "parts")]
    merged, again = (load_file(end / "hf" / "model.safetensors") for end in ends)
    assert all(tensor.equal(again[name]) for name, tensor in merged.items())
    steps = [step for step in straight if "actor/kl_loss" in step]
    assert steps[0]["actor/kl_loss"] == pytest.approx(0.0, abs=1e-6) and steps[2]["actor/kl_loss"] > 1e-4

    assert all(0 < step[f"perf/mfu/{role}"] < 1.5 for step in steps for role in ("actor", "critic"))

    assert main(["export", str(tmp_path / "straight"), str(tmp_path / "merged")]) == 0
    assert main(["export", str(tmp_path / "straight"), str(tmp_path / "adapter"), "--adapter"]) == 0
    ids = torch.arange(10, 40)[None]
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(ids).logits
    base = AutoModelForCausalLM.from_pretrained(resolve_path("builtin:tiny"), dtype=torch.float32)
    before = base(ids).logits
    alone = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))(ids).logits
    torch.testing.assert_close(alone, whole, atol=1e-4, rtol=0)
    assert (whole - before).abs().max() > 1e-3


def test_the_reference_needs_no_second_model(
    run: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer's base and the rollout engine's copy, and no third."""
    loads: list[Any] = []
    for module in (actor_rollout_ref, rollout_engines):
        monkeypatch.setattr(module, "load_causal_lm", lambda *a, **k: loads.append(a) or load_causal_lm(*a, **k))
    run(*LORA[:1], "actor_rollout_ref.actor.use_kl_loss=true", "trainer.total_training_steps=1")
    assert len(loads) == 2


def test_settings_that_mean_nothing_are_refused(small_config: Callable[..., Config]) -> None:
    from podium.config.checks import check_config
    from podium.errors import ConfigError

    with pytest.raises(ConfigError, match=r"reward_model\.model\.lora_rank must be 0"):
        check_config(small_config("reward_model.model.lora_rank=4"))
    with pytest.raises(ConfigError, match=r"lora_alpha = 0\.0 must be above 0"):
        check_config(small_config("actor_rollout_ref.model.lora_alpha=0"))
    with pytest.raises(ConfigError, match="target_modules is empty"):
        check_config(small_config("actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.target_modules=[]"))
