from __future__ import annotations

from typing import Any

import pytest
import torch

from podium.config.schema import Config
from podium.errors import PublishError, RewardError, TrainingError
from podium.protocol import DataProto, compute_position_ids
from podium.rewards.manager import RewardManager
from podium.trainer.scoring import (
    add_greedy_baseline,
    check_versions,
    drop_flat_groups,
    gather_groups,
    num_groups,
    score_batch,
)


class Words:
    """Decodes a token as its number."""

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return " ".join(str(i) for i in ids)


def make_batch(responses: list[list[int]], uids: list[str] | None = None) -> DataProto:
    width = max(len(row) for row in responses)
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in responses])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in responses])
    prompts = torch.ones(len(responses), 2, dtype=torch.long)
    attention_mask = torch.cat([torch.ones_like(prompts), mask], 1)
    rows = len(responses)
    return DataProto.from_dict(
        {
            "prompts": prompts,
            "responses": ids,
            "input_ids": torch.cat([prompts, ids], 1),
            "attention_mask": attention_mask,
            "position_ids": compute_position_ids(attention_mask),
            "response_mask": mask,
            "policy_version": torch.zeros(rows, dtype=torch.long),
        },
        {
            "uid": uids or [f"u{i}" for i in range(rows)],
            "data_source": ["t"] * rows,
            "ground_truth": ["5"] * rows,
            "extra_info": [{}] * rows,
            "stop_reason": ["eos"] * rows,
        },
    )


def last_number(source: str, text: str, truth: Any, extra: Any) -> float:
    if text.endswith("13"):
        raise RuntimeError("unlucky")
    return float(text.split()[-1]) if text else 0.0


def manager(fn: Any = last_number, rate: float = 0.9) -> RewardManager:
    return RewardManager(Words(), fn, rate)


def test_a_score_lands_on_the_last_token_the_model_wrote() -> None:
    scored, _ = score_batch(make_batch([[3, 7], [4]]), manager())
    assert scored.tensors()["token_level_scores"].tolist() == [[0.0, 7.0], [4.0, 0.0]]


def test_a_failed_reward_leaves_its_group_and_is_never_zero() -> None:
    scored, outcome = score_batch(make_batch([[3, 7], [13], [2]], ["a", "a", "a"]), manager())
    assert len(scored) == 2 and outcome.metrics["reward/unscored"] == 1
    assert torch.isnan(outcome.scores[1])


@pytest.mark.parametrize("returned", [None, "seven", float("nan"), float("inf"), {"acc": 1.0}])
def test_what_is_no_finite_number_is_unscored(returned: Any) -> None:
    def odd(source: str, text: str, truth: Any, extra: Any) -> Any:
        return returned if text == "9" else 1.0

    scored, _ = score_batch(make_batch([[9], [1]]), manager(odd))
    assert scored.tensors()["token_level_scores"].tolist() == [[1.0]]


def test_the_run_stops_when_too_many_rewards_fail() -> None:
    with pytest.raises(RewardError, match=r"2 of 3.*max_failure_rate"):
        score_batch(make_batch([[13], [13], [1]]), manager(rate=0.5))


def test_an_empty_response_is_left_out_and_counted() -> None:
    scored, outcome = score_batch(make_batch([[1], []]), manager())
    assert len(scored) == 1 and outcome.metrics["response/aborted_ratio"] == 0.5


def test_a_step_without_any_score_says_so() -> None:
    with pytest.raises(TrainingError, match="none of the 1"):
        score_batch(make_batch([[]]), manager())


def test_extra_keys_of_a_reward_are_kept_and_averaged() -> None:
    def parts(source: str, text: str, truth: Any, extra: Any) -> dict[str, Any]:
        return {"score": 1.0, "format": 0.5, "note": "x"}

    scored, outcome = score_batch(make_batch([[1], [2]]), manager(parts))
    assert outcome.metrics["reward/format"] == 0.5
    assert list(scored.non_tensor_batch["reward/format"]) == [0.5, 0.5]
    assert list(outcome.extra["note"]) == ["x", "x"]


def test_samples_of_weights_nobody_published_stop_the_run() -> None:
    batch = make_batch([[1]])
    check_versions(batch, 0, 0)
    with pytest.raises(PublishError, match="versions 0 to 0"):
        check_versions(batch, 1, 1)


def test_the_greedy_score_of_its_prompt_is_each_rows_baseline() -> None:
    batch = make_batch([[1], [2], [3]], ["a", "b", "a"])
    greedy = make_batch([[5], [6]], ["a", "b"])
    out = add_greedy_baseline(batch, greedy, torch.tensor([5.0, float("nan")]))
    assert out.tensors()["reward_baselines"].tolist() == [5.0, 5.0], "a prompt whose baseline failed leaves"


def test_dynamic_sampling_keeps_groups_with_a_signal_and_a_prompt_once() -> None:
    config = Config()
    config.algorithm.filter_groups.enable = True
    config.data.train_batch_size = 2
    first, _ = score_batch(make_batch([[1], [2], [3], [3]], ["a", "a", "flat", "flat"]), manager())
    second, _ = score_batch(make_batch([[1], [4], [1], [2], [5], [6]], ["a", "a", "b", "b", "c", "c"]), manager())
    parts = [drop_flat_groups(first), drop_flat_groups(second)]
    assert num_groups(parts) == 3
    metrics: dict[str, Any] = {}
    whole = gather_groups(parts, config, metrics)
    assert list(whole.non_tensor_batch["uid"]) == ["a", "a", "b", "b"]
    assert metrics["training/num_gen_batches"] == 2
    with pytest.raises(TrainingError, match="still equal"):
        gather_groups([drop_flat_groups(first.select_idxs([2, 3]))], config, metrics)
