"""The memory estimate against peaks that were measured, and what it does when something does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from podium.checks.memory import Shape, check_memory, estimate, kv_bytes_per_token
from podium.config import load_config

HALF_B = Shape(494_032_768, 24, 896, 4864, 128, 151936)
ONE_AND_A_HALF_B = Shape(1_543_714_304, 28, 1536, 8960, 256, 151936)
MICRO = ["data.max_prompt_length=512", "data.max_response_length=2048", "data.train_batch_size=96"]


@pytest.mark.parametrize(
    "shape, checkpointing, measured_gb",
    [(HALF_B, False, 30.2), (HALF_B, True, 10.8), (ONE_AND_A_HALF_B, True, 29.4)],
)
def test_training_alone_is_within_a_fifth_of_the_measured_peak(
    shape: Shape, checkpointing: bool, measured_gb: float
) -> None:
    """bench/RESULTS.md, one H200, micro-batches of 16,384 tokens, no rollout engine beside it."""
    config = load_config(None, [*MICRO, f"actor_rollout_ref.model.enable_gradient_checkpointing={checkpointing}"])
    now = estimate(config, shape, is_gpu=True, device_gb=141)
    assert now.total - now.kv == pytest.approx(measured_gb, rel=0.2)


def test_more_workers_hold_less_each_and_a_critic_holds_as_much_again() -> None:
    alone = estimate(load_config(None, MICRO), HALF_B, True, 80)
    eight = estimate(load_config(None, [*MICRO, "trainer.n_gpus_per_node=8"]), HALF_B, True, 80)
    critic = estimate(load_config(None, [*MICRO, "algorithm.adv_estimator=gae"]), HALF_B, True, 80)
    assert eight.optimizer == pytest.approx(alone.optimizer / 8)
    assert critic.optimizer == pytest.approx(alone.optimizer * 2)


def test_zero_2_holds_all_weights_zero_3_a_share_and_a_host_the_optimizer() -> None:
    words = [*MICRO, "trainer.n_gpus_per_node=8", "actor_rollout_ref.actor.strategy=deepspeed"]
    part = HALF_B.parameters / 8 / 2**30  # what one rank has of each number

    def of(*more: str) -> tuple[float, float]:
        now = estimate(load_config(None, [*words, *more]), HALF_B, True, 80)
        return now.weights / part - 16, now.optimizer / part  # beside the rollout engine's copy in bfloat16

    assert of("actor_rollout_ref.actor.deepspeed.zero_stage=2") == pytest.approx((16 + 8, 8))
    assert of("actor_rollout_ref.actor.deepspeed.zero_stage=3") == pytest.approx((2 + 8, 8))
    assert of("actor_rollout_ref.actor.deepspeed.offload_optimizer=true") == pytest.approx((2 + 4, 0))


def test_a_split_model_and_its_optimizer_lie_on_the_ranks_that_share_it() -> None:
    words = [*MICRO, "trainer.n_gpus_per_node=8", "actor_rollout_ref.actor.strategy=megatron"]
    part = HALF_B.parameters / 4 / 2**30

    def of(*more: str) -> tuple[float, float]:
        now = estimate(load_config(None, [*words, *more]), HALF_B, True, 80)
        return now.weights / part - 8, now.optimizer / part  # beside the rollout engine's copy in bfloat16

    words.append("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4")
    assert of() == pytest.approx((2 + 8, 4)), "two replicas share the optimizer's state"
    assert of("actor_rollout_ref.actor.megatron.use_distributed_optimizer=false") == pytest.approx((2 + 8, 8))


def test_the_kv_cache_is_what_the_sequences_fill_up_to_its_share() -> None:
    assert kv_bytes_per_token(HALF_B, 2) == 2 * 24 * 128 * 2
    few = estimate(load_config(None, [*MICRO, "data.train_batch_size=1"]), HALF_B, True, 80)
    many = estimate(load_config(None, [*MICRO, "actor_rollout_ref.rollout.max_num_seqs=100000"]), HALF_B, True, 20)
    assert few.kv == pytest.approx(8 * 2560 * 12288 / 2**30)
    assert many.kv <= 0.5 * 20 + 1e-9


def test_what_does_not_fit_is_answered_with_the_largest_that_does() -> None:
    config = load_config(None, MICRO)
    (finding,) = check_memory(config, HALF_B, True, 26.0, "a GPU")
    assert finding.level == "problem"
    tokens = int(finding.fix.split("max_tokens_per_micro_batch=")[1].split()[0])
    actor = replace(config.actor_rollout_ref.actor, max_tokens_per_micro_batch=tokens)
    smaller = replace(config, actor_rollout_ref=replace(config.actor_rollout_ref, actor=actor))
    assert estimate(smaller, HALF_B, True, 26.0).total <= 26.0
