"""`fsdp.param_offload` and `optimizer_offload` in a run: an engine that rests lets go of the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from podium.engines.train.torch import TorchEngine
from podium.models.value import ValueModel

WHAT = ("param", "optimizer")
ALIGNED = ("algorithm.repr_align.enable=true", "algorithm.repr_align.ref_alignment.entropy_high_threshold=0.0")
PPO = ("algorithm.adv_estimator=gae", "actor_rollout_ref.actor.use_kl_loss=true", "trainer.save_freq=1")


def test_each_engine_rests_after_its_part_of_a_step_and_wakes_for_the_next(
    run: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run(*PPO, *ALIGNED, folder="plain")
    assert plain[0]["repr_align/active"] == 1, "the reference has more to do than log-probs"
    moves: dict[str, list[tuple[str, bool]]] = {"actor": [], "critic": [], "ref": []}

    def note(engine: TorchEngine, device: torch.device, weights: bool) -> None:
        role = "critic" if isinstance(engine.module, ValueModel) else "actor" if engine.optimizer else "ref"
        moves[role].append(("rests" if engine._offloaded else "wakes", weights))

    monkeypatch.setattr(TorchEngine, "_move", note)
    words = [f"{role}.fsdp.{what}_offload=true" for role in ("actor_rollout_ref.actor", "critic") for what in WHAT]
    rested = run(*PPO, *ALIGNED, *words, folder="rested")
    for role, seen in moves.items():
        kinds = [kind for kind, _ in seen]
        assert kinds.count("rests") >= 2 and "wakes" in kinds, f"{role} rests in each of two steps"
        assert kinds[-1] == "rests", role
    assert not any(weights for kind, weights in moves["actor"] if kind == "rests"), "the rollout engine runs on them"
    assert all(weights for kind, weights in moves["critic"] + moves["ref"] if kind == "rests")
    names = ("actor/pg_loss", "critic/vf_loss", "actor/kl_loss")
    assert [[step[name] for name in names] for step in rested] == [[step[name] for name in names] for step in plain]


def test_an_engine_without_these_settings_stays(
    run: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: list[object] = []
    monkeypatch.setattr(TorchEngine, "_move", lambda *args: moves.append(args))
    run(*PPO, "trainer.total_training_steps=1")
    assert moves == []
