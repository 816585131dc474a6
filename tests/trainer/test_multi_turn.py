"""Whole runs with episodes of several turns: the same trainer, in one process and on Ray."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from podium.agents.episode import Episode
from podium.algorithms import observed_as_agreed
from podium.config.schema import Config
from podium.engines.rollout.base import Completion, StopReason
from podium.errors import TrainingError
from podium.protocol import object_array
from podium.retrieval.corpus import read_corpus
from podium.retrieval.index import BM25Index
from podium.retrieval.server import Beside
from podium.rewards.manager import OUTCOME
from podium.rewards.records import scored, skipped
from podium.single_controller import CompletedFuture, shutdown_ray
from podium.trainer.main_ppo import run_ppo
from podium.trainer.resume import ResumePoint, read_pending
from podium.trainer.rollout_queue import PendingRollout
from podium.workers.episodes import to_columns

Run = Callable[..., list[dict[str, Any]]]
SEARCH = [
    "do_search=true",
    "max_turns=3",
    "retriever.topk=2",
    "data.train_files=task:search?rows=64",
    "data.val_files=task:search?rows=8",
    "data.max_prompt_length=384",
    "data.max_start_length=64",
    "data.max_response_length=32",
    "data.max_obs_length=128",
    "actor_rollout_ref.model.path=builtin:tiny-search",
]


@pytest.fixture(scope="module", autouse=True)
def ray_ends_with_the_module() -> Iterator[None]:
    yield
    shutdown_ray()


def dump(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.parametrize(
    "words",
    [[], ["algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=true", "actor_rollout_ref.actor.ppo_epochs=2"]],
    ids=["grpo", "ppo with a critic, KL and two epochs"],
)
def test_a_search_run_trains_and_validates(words: list[str], run: Run, tmp_path: Path) -> None:
    steps = run(*SEARCH, *words)
    first = steps[0]
    assert 0 < first["env/number_of_valid_search"] <= 3
    assert first["env/finish_ratio"] > 0.9 and first["env/error_ratio"] == 0
    assert 0 < first["state_tokens/coverage"] < 0.6
    assert first["num_turns/max"] <= 4
    assert first.get("rollout_corr/prob_diff", 0.0) < 1e-3, "what is scored is what was sampled"
    assert "val-core/search/reward/mean@1" in steps[-1] and "val-aux/search/num_calls/mean@1" in steps[-1]
    sample = dump(tmp_path / "run", "rollouts/1.jsonl")[0]
    assert {0, 1} == set(sample["response_mask"])
    assert all(
        advantage == 0 for advantage, own in zip(sample["advantages"], sample["response_mask"], strict=True) if not own
    )
    assert sample["turns"] >= 2 and sample["num_calls"] >= 1


def test_masking_off_trains_on_the_pages_too(run: Run) -> None:
    steps = run(*SEARCH, "actor_rollout_ref.actor.state_masking=false", "trainer.total_training_steps=1")
    assert steps[0]["state_tokens/coverage"] == 1.0
    assert steps[0].get("rollout_corr/prob_diff", 0.0) < 1e-3, "a page has no sampler to differ from"


def test_two_ray_workers_with_a_server_sample_what_one_process_samples(run: Run) -> None:
    server = Beside(BM25Index(read_corpus("task:search")))
    words = [*SEARCH, "trainer.total_training_steps=1", "trainer.val_before_train=true"]
    alone = run(*words, folder="alone")
    there = [f"retriever.url={server.url}", "retriever.timeout_s=300"]
    together = run(*words, *there, "trainer.runtime=ray", "trainer.n_gpus_per_node=2", folder="together")
    server.close()
    same = ("critic/score/mean", "env/number_of_valid_search", "env/number_of_actions/mean", "state_tokens/total")
    assert [together[1][name] for name in same] == pytest.approx([alone[1][name] for name in same])
    assert together[1]["actor/pg_loss"] == pytest.approx(alone[1]["actor/pg_loss"], abs=1e-4)
    assert together[0]["val/test_score/search"] == alone[0]["val/test_score/search"]


def test_a_dead_retriever_stops_the_run_with_the_reason(small_config: Callable[..., Config]) -> None:
    failed = r"episodes of this step failed, more than agent.max_failure_rate.*Refused"
    with socket.socket() as holder:  # bound, so that nobody else takes the port, and not listening
        holder.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{holder.getsockname()[1]}/retrieve"
        with pytest.raises(TrainingError, match=failed):
            run_ppo(small_config(*SEARCH, "retriever.retries=1", "retriever.timeout_s=300", f"retriever.url={url}"))


def test_some_failed_episodes_leave_the_step_and_are_counted(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "sometimes.py"
    path.write_text(
        "from podium.agents.environment import Observation\n"
        "class Sometimes:\n"
        "    scores = True\n"
        "    async def reset(self, row):\n"
        "        self.sample, self.validate = row.sample, row.validate\n"
        "    async def step(self, text, tokens):\n"
        "        if self.sample == 0 and not self.validate:\n"
        "            raise OSError('no line')\n"
        "        return Observation(done=True, reward=float(self.sample))\n"
        "    async def close(self):\n"
        "        pass\n"
    )
    steps = run(f"agent.environment={path}:Sometimes", "trainer.total_training_steps=1")
    assert steps[0]["env/error_ratio"] == 0.25
    assert steps[0]["critic/score/min"] == 1.0 and steps[0]["critic/score/mean"] == 2.0, "samples 1, 2 and 3"
    failed = [sample for sample in dump(tmp_path / "run", "rollouts/1.jsonl") if sample["stop_reason"] == "error"]
    assert len(failed) == 8 and all(sample["score"] is None for sample in failed)


def test_observations_have_no_gap_between_sampler_and_trainer() -> None:
    sampled, trained = torch.tensor([[-1.0, 0.0, -2.0]]), torch.tensor([[-1.1, -3.0, -2.2]])
    agreed = observed_as_agreed(sampled, trained, torch.tensor([[1, 0, 1]]))
    assert torch.equal(agreed, torch.tensor([[-1.0, -3.0, -2.0]]))
    assert observed_as_agreed(sampled, trained, None) is sampled


def test_episodes_that_wait_for_their_update_survive_a_checkpoint(tmp_path: Path) -> None:
    """With rollouts ahead of training, unused episodes go into the checkpoint with what is known of their scores."""
    episodes = [Episode([1, 2]), Episode([3])]
    episodes[0].write(Completion([4, 5], [-0.5, -0.5], [-0.5, -0.5], StopReason.STOP, 3))
    episodes[0].observe([6])
    batch = to_columns(episodes, pad_token_id=0, version=3)
    batch.non_tensor_batch[OUTCOME] = object_array([scored({"score": 1.0}), skipped("gone")])
    future = CompletedFuture(batch)
    ResumePoint(1, {}, (PendingRollout(batch, future, None, {}, 3),)).write(tmp_path)
    entries = [{"sampler": {}, "version": 3, "baseline": False}]
    (found,) = read_pending(tmp_path, entries, lambda state: batch)
    again = found.output.get()
    assert torch.equal(again.tensors()["info_mask"], batch.tensors()["info_mask"])
    assert list(again.non_tensor_batch[OUTCOME]) == [scored({"score": 1.0}), skipped("gone")]
