"""What a run says instead of doing less than was asked, and what it lists at its end."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from podium.config.schema import AlgorithmConfig, Config
from podium.errors import ConfigError, DataError
from podium.models.load import load_tokenizer
from podium.protocol import DataProto, object_array
from podium.trainer.advantage import apply_score_penalties
from podium.trainer.alignment import align_representations, truth_batch, truth_text
from podium.trainer.main_ppo import run_ppo
from podium.trainer.recorder import missing_best_metric

ConfigMaker = Callable[..., Config]
Run = Callable[..., list[dict[str, Any]]]
TOKENIZER: Any = load_tokenizer("builtin:tiny")
METRICS = {"val-core/addition/reward/mean@1": 0.5, "val/test_score/addition": 0.5}


def console(config: Config) -> str:
    return (Path(config.trainer.default_local_dir) / "console.log").read_text()


# ---- the end of an episode


def test_an_episode_that_answered_needs_no_end_of_sequence() -> None:
    reasons = ["answered", "done", "turns", "length", "eos"]
    eos, other = 2, 7
    batch = DataProto.from_dict(
        {
            "responses": torch.tensor([[other, other]] * 4 + [[other, eos]]),
            "response_mask": torch.ones(5, 2),
            "token_level_scores": torch.zeros(5, 2),
        },
        {"stop_reason": reasons},
    )
    apply_score_penalties(batch, AlgorithmConfig(missing_eos_penalty=1.0), eos, 16)
    assert batch.tensors()["token_level_scores"].sum(-1).tolist() == [0.0, 0.0, -1.0, -1.0, 0.0]


# ---- a critic for an estimator of one's own

ESTIMATOR = """
def mine(token_level_rewards, response_mask, values):
    advantages = (token_level_rewards - values) * response_mask
    return advantages, advantages
"""


def test_an_estimator_that_asks_for_values_gets_a_critic(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ESTIMATOR)
    steps = run(f"algorithm.adv_estimator={tmp_path}/mine.py:mine", "trainer.total_training_steps=1")
    assert "critic/vf_loss" in steps[0]


def test_an_estimator_that_asks_for_values_and_a_critic_that_is_off(small_config: ConfigMaker, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ESTIMATOR)
    config = small_config(f"algorithm.adv_estimator={tmp_path}/mine.py:mine", "critic.enable=false")
    with pytest.raises(ConfigError, match=r"asks for `values`.*critic\.enable is false"):
        run_ppo(config)
    assert not (tmp_path / "run" / "rollouts").exists(), "nothing was generated"


# ---- ground truths


@pytest.mark.parametrize(
    ("truth", "text"),
    [
        *(("blue", "blue"), (2, "2"), (2.5, "2.5"), (np.int64(3), "3")),
        *(
            ({"target": ["Paris", "paris"]}, "Paris"),
            ({"target": "Paris"}, "Paris"),
            ({"target": np.array(["a"])}, "a"),
        ),
        *((["first", "second"], "first"), ({"target": []}, ""), ({"other": 1}, ""), (None, ""), (True, "")),
    ],
)
def test_a_ground_truth_as_text(truth: Any, text: str) -> None:
    assert truth_text(truth) == text


def truths_of(*ground_truths: Any) -> DataProto:
    rows = len(ground_truths)
    ones = torch.ones(rows, 4, dtype=torch.long)
    batch = DataProto.from_dict(
        {
            "prompts": ones[:, :2],
            "responses": ones[:, 2:],
            "attention_mask": ones,
            "response_mask": ones[:, 2:],
            "entropys": torch.ones(rows, 2),
            "token_level_rewards": torch.zeros(rows, 2),
        },
        {"ground_truth": object_array(list(ground_truths))},
    )
    batch.meta_info["dp_partition"] = [list(range(rows))]
    return batch


def test_search_answers_and_numbers_are_aligned_with() -> None:
    truths, has_truth = truth_batch(truths_of({"target": ["12"]}, 7, "x", None), TOKENIZER, 8)
    assert has_truth.tolist() == [True, True, True, False]
    assert TOKENIZER.decode(truths.tensors()["responses"][0]).startswith("12")


def test_a_step_without_any_ground_truth_says_so(small_config: ConfigMaker) -> None:
    said: list[str] = []
    config = small_config("algorithm.repr_align.enable=true")
    metrics = align_representations(truths_of({"a": 1}, None), None, TOKENIZER, config, 1, 2, said.append)
    assert len(said) == 1 and "repr_align has no effect" in said[0] and "type dict" in said[0]
    assert metrics["repr_align/skipped"].result() == 2.0  # type: ignore[union-attr]


# ---- the best checkpoint, and those that are left


def test_a_misspelt_best_metric_and_the_nearest() -> None:
    said = missing_best_metric("val-core/adition/reward/mean@1", METRICS)
    assert said is not None and "did you mean val-core/addition/reward/mean@1?" in said
    assert missing_best_metric("val-core/addition/reward/mean@1", METRICS) is None
    assert missing_best_metric(None, METRICS) is None


def test_a_run_says_once_that_its_best_metric_is_unknown_and_lists_the_checkpoints_that_exist(
    small_config: ConfigMaker,
) -> None:
    config = small_config(
        *("trainer.save_freq=1", "trainer.test_freq=1", "trainer.max_ckpt_to_keep=1", "trainer.best_metric=accuracy")
    )
    assert run_ppo(config) == 0
    text = console(config)
    assert text.count("trainer.best_metric = accuracy is not a metric of the validation") == 1
    listed = [line.split()[-1] for line in text.splitlines() if line.startswith("checkpoint")]
    assert [Path(path).name for path in listed] == ["global_step_2"] and Path(listed[0]).is_dir()


def test_notes_are_said_in_the_run_itself(small_config: ConfigMaker) -> None:
    config = small_config("max_turns=4", "algorithm.adv_estimator=gae", "trainer.critic_warmup=9")
    assert run_ppo(config) == 0
    assert "note: max_turns=4: no effect" in console(config)
    assert "note: the policy is never trained" in console(config)


# ---- a column that chooses an agent


def test_a_row_of_another_agent_loop_stops_the_run_with_the_row_and_the_setting(
    small_config: ConfigMaker, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    lines = [{"prompt": f"{n}+1=", "data_source": "addition", "agent_name": "tool_agent"} for n in range(8)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError, match=r"rows.jsonl, line 1 has agent_name 'tool'.*agent\.tools"):
        run_ppo(small_config(f"data.train_files={rows}", "data.max_bad_rows=100"))


# ---- profiles


def test_the_steps_to_profile_leave_a_trace_each(small_config: ConfigMaker, tmp_path: Path) -> None:
    assert run_ppo(small_config("trainer.profile_steps=[2]")) == 0
    (file,) = (tmp_path / "run" / "profile").iterdir()
    assert file.name == "step_2_actor_rollout_rank_0.json.gz"
    names = {event.get("name") for event in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]}
    assert {"aten::mm", "aten::embedding"} & names and any("Backward" in str(name) for name in names)
