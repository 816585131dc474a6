"""The same program on Ray workers: the same samples, the same update, the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from podium.config.schema import Config
from podium.errors import WorkerError
from podium.single_controller import shutdown_ray
from podium.tracking import read_metrics
from podium.trainer.main_ppo import run_ppo

Run = Callable[..., list[dict[str, Any]]]
TWO_WORKERS = ["trainer.runtime=ray", "trainer.n_gpus_per_node=2"]


@pytest.fixture(scope="module", autouse=True)
def ray_ends_with_the_module() -> Iterator[None]:
    yield
    shutdown_ray()


def weights(folder: Path, step: int) -> dict[str, Tensor]:
    return load_file(folder / "checkpoints" / f"global_step_{step}" / "hf" / "model.safetensors")


@pytest.mark.parametrize(
    "words",
    [
        ["actor_rollout_ref.actor.ppo_mini_batch_size=3", "data.train_batch_size=9"],
        ["algorithm.adv_estimator=gae", "actor_rollout_ref.actor.use_kl_loss=true"],
    ],
    ids=["grpo, three mini-batches", "ppo with KL loss"],
)
def test_two_ranks_train_the_same_parameters_as_one(run: Run, tmp_path: Path, words: list[str]) -> None:
    words = [*words, "trainer.save_freq=1", "actor_rollout_ref.actor.optim.lr=1e-4"]
    alone = run(*words, folder="alone")
    together = run(*words, *TWO_WORKERS, folder="together")
    assert together[0]["critic/score/mean"] == alone[0]["critic/score/mean"], "the same samples"
    assert together[0]["timing_s/gen/rank_1"] > 0, "each rank says how long it took"
    for name in ("actor/pg_loss", "actor/grad_norm", "actor/entropy"):
        assert together[0][name] == pytest.approx(alone[0][name], abs=1e-5), name
    one, two = weights(tmp_path / "alone", 1), weights(tmp_path / "together", 1)
    assert one.keys() == two.keys()
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5


def test_a_run_saved_by_two_ranks_goes_on_with_one(run: Run) -> None:
    words = ["trainer.save_freq=1"]
    run(*words, *TWO_WORKERS, "trainer.total_training_steps=1")
    steps = run(*words, "trainer.total_training_steps=2")
    assert [step["step"] for step in steps] == [1, 2]


def test_one_step_off_policy_samples_are_one_version_old(small_config: Callable[..., Config]) -> None:
    config = small_config("trainer.runtime=ray", "trainer.max_staleness=1", "trainer.total_training_steps=4")
    run_ppo(config)
    steps = read_metrics(config.trainer.default_local_dir)
    assert [step["training/staleness"] for step in steps] == [0, 1, 1, 1]


def test_a_failing_worker_is_named_with_its_own_traceback(small_config: Callable[..., Config], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):\n"
        "    raise RuntimeError('planted')\n"
    )
    config = small_config(*TWO_WORKERS, f"actor_rollout_ref.actor.policy_loss.loss_mode={file}:loss")
    with pytest.raises(WorkerError, match=r"actor_rollout worker, rank \d, failed in update_actor\(\)") as caught:
        run_ppo(config)
    assert "planted" in str(caught.value) and "mine.py" in caught.value.remote_traceback
