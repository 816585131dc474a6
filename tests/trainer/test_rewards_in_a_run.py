"""Reward functions inside a real run: failures are unscored, hanging functions are killed, training goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from podium.errors import RewardError
from podium.tracking import read_samples

FAULTY = """
import hashlib, os, time

def share(text, truth):
    return int(hashlib.sha256((text + str(truth)).encode()).hexdigest(), 16) % 100

def fault(data_source, solution_str, ground_truth, extra_info, kind, percent):
    if share(solution_str, extra_info["index"]) < percent:
        if kind == "raise":
            raise RuntimeError("as asked")
        if kind == "hang":
            while True: pass
        return {"nan": float("nan"), "none": None, "str": "seven"}[kind]
    return {"score": float(len(solution_str)), "length": len(solution_str)}

def sleeps(data_source, solution_str, ground_truth, extra_info, seconds=0.0):
    time.sleep(seconds)
    return float(len(solution_str))
"""


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FAULTY)
    return path


def words(functions: Path, kind: str, percent: int, *more: str) -> list[str]:
    return [
        f"reward.custom_reward_function={functions}:fault",
        f"reward.kwargs={{kind: {kind}, percent: {percent}}}",
        "reward.num_processes=2",
        f"reward.timeout_s={1.0 if kind == 'hang' else 300.0}",
        *more,
    ]


@pytest.mark.parametrize("kind", ["raise", "hang", "nan", "none", "str"])
@pytest.mark.parametrize("percent", [1, 50])
def test_failed_rewards_are_unscored_and_training_goes_on(run, functions, tmp_path, kind, percent):
    size = ["data.train_batch_size=2", "trainer.total_training_steps=1"] if kind == "hang" else []
    steps = run(*words(functions, kind, percent, "reward.max_failure_rate=0.95", *size))
    first = read_samples(tmp_path / "run" / "rollouts", 1)
    unscored = [sample for sample in first if sample["score"] is None]
    assert steps[0]["reward/unscored"] == len(unscored)
    name = "reward/timeout" if kind == "hang" else "reward/error"
    assert steps[0][name] == len(unscored)
    assert all(sample["score"] == sample["length"] for sample in first if sample["score"] is not None)
    if percent == 50:
        assert 0 < len(unscored) < len(first)


@pytest.mark.parametrize("kind", ["raise", "hang", "none"])
def test_a_reward_that_always_fails_stops_the_run_and_names_function_and_row(run, functions, kind):
    with pytest.raises(
        RewardError, match=r"of 8 rewards of this step failed.*first was on task:addition\S*, row \d+ \(addition\)"
    ):
        run(*words(functions, kind, 100, "data.train_batch_size=2", "data.train_files=task:addition?rows=2"))


def test_the_same_numbers_come_out_scored_here_or_in_processes(run, functions):
    there = run(f"reward.custom_reward_function={functions}:sleeps", folder="there")
    here = run(f"reward.custom_reward_function={functions}:sleeps", "reward.num_processes=0", folder="here")
    assert [step["critic/score/mean"] for step in there] == [step["critic/score/mean"] for step in here]
    assert [step["actor/pg_loss"] for step in there] == [step["actor/pg_loss"] for step in here]


def test_validation_only_leaves_the_model_alone(run):
    steps = run("trainer.val_only=true")
    assert [set(step) & {"val/test_score/addition", "actor/pg_loss"} for step in steps] == [{"val/test_score/addition"}]


CURRICULUM = """
import json, pathlib
class Curriculum:
    def __init__(self, size, batch_size, dataset):
        self.size, self.batch_size, self.epoch, self.at = size, batch_size, 0, 0
        self.row_of = {dataset.uid(i): i for i in range(size)}
        self.seen = {}
    def __len__(self): return self.size // self.batch_size
    def next_batch(self):
        self.at += self.batch_size
        return [i % self.size for i in range(self.at - self.batch_size, self.at)]
    def observe(self, scores):
        self.seen |= {str(self.row_of[uid]): score for uid, score in scores.items()}
        pathlib.Path(OUT).write_text(json.dumps(self.seen))
    def state_dict(self): return {"at": self.at}
    def load_state_dict(self, state): self.at = state["at"]
"""


def test_a_curriculum_hears_how_its_prompts_went(run, tmp_path):
    (tmp_path / "own.py").write_text(f"OUT = {str(tmp_path / 'seen.json')!r}\n" + CURRICULUM)
    run(f"data.sampler={tmp_path}/own.py:Curriculum", "trainer.total_training_steps=2")
    assert sorted(map(int, json.loads((tmp_path / "seen.json").read_text()))) == list(range(16))
