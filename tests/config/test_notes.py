"""A setting that has no effect, or another than it seems, is said in one line; a plain run gets no line."""

from __future__ import annotations

import pytest

from podium.algorithms.losses import get_policy_loss_fn
from podium.config import check_config, config_notes, load_config
from podium.config.notes import FIXED_AGGREGATION
from podium.config.ranges import POLICY_LOSSES

ACTOR = "actor_rollout_ref.actor"
GAE = ["algorithm.adv_estimator=gae", "trainer.total_training_steps=10"]
SEARCH = ["data.train_files=task:search", "do_search=true", "retriever.topk=5", "max_turns=4"]


def notes(*words: str, total_steps: int | None = None) -> list[str]:
    config = load_config(None, ["actor_rollout_ref.rollout.n=4", *words])
    check_config(config)
    return config_notes(config, total_steps)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["max_turns=4", "retriever.topk=5"], ["retriever.topk=5, max_turns=4", "do_search=true"]),
        (["data.max_obs_length=100"], ["data.max_obs_length=100", "single-turn"]),
        (
            ["agent.tools=[python]", "retriever.topk=5", "max_turns=4"],
            ["retriever.topk=5: no effect", "without search"],
        ),
        ([*GAE, "trainer.critic_warmup=10"], ["the policy is never trained", "critic_warmup=10", "has 10"]),
        (
            [f"{ACTOR}.policy_loss.loss_mode=gspo", f"{ACTOR}.loss_agg_mode=seq-mean-token-sum"],
            ["loss_agg_mode=seq-mean-token-sum has no effect", "seq-mean-token-mean"],
        ),
        (["trainer.best_metric=val-core/x"], ["best_metric=val-core/x has no effect", "max_ckpt_to_keep"]),
        (["trainer.ray_dashboard=true"], ["ray_dashboard has no effect", "trainer.runtime=ray"]),
        ([f"{ACTOR}.strategy=deepspeed"], ["strategy=deepspeed has no effect", "as with fsdp"]),
        ([f"{ACTOR}.strategy=megatron"], ["strategy=megatron has no effect", "as with fsdp"]),
        (
            [f"{ACTOR}.strategy=megatron", "trainer.n_gpus_per_node=2"],
            ["tensor_model_parallel_size=1", "every worker holds the whole model"],
        ),
        (["trainer.profile_steps=[3, 30]", "trainer.total_training_steps=10"], ["profile_steps=[3, 30]", "only 10"]),
        (["algorithm.adv_estimator=mine:function"], ["whether mine:function needs a critic", "critic.enable"]),
    ],
)
def test_one_line_names_the_setting_and_what_becomes_of_it(words: list[str], says: list[str]) -> None:
    (line,) = notes(*words)
    assert all(part in line for part in says), line


@pytest.mark.parametrize(
    "words",
    [
        [],
        SEARCH,
        [*GAE, "trainer.critic_warmup=9"],
        [f"{ACTOR}.policy_loss.loss_mode=gspo"],
        [f"{ACTOR}.policy_loss.loss_mode=gspo", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"],
        [
            *(f"{ACTOR}.strategy=megatron", "trainer.n_gpus_per_node=2"),
            f"{ACTOR}.megatron.tensor_model_parallel_size=2",
        ],
        ["trainer.test_freq=5", "trainer.best_metric=val-core/x", "trainer.max_ckpt_to_keep=2"],
    ],
)
def test_what_works_as_it_says_gets_no_line(words: list[str]) -> None:
    assert notes(*words) == []


def test_validation_that_was_asked_for_without_rows(tmp_path_factory: pytest.TempPathFactory) -> None:
    rows = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows.touch()
    (line,) = notes(f"data.train_files={rows}", "trainer.test_freq=5")
    assert "trainer.test_freq=5: no effect" in line and "data.val_files" in line
    assert notes(f"data.train_files={rows}", "trainer.val_before_train=false") == []


def test_the_steps_of_epochs_count_once_they_are_known() -> None:
    words = ["algorithm.adv_estimator=gae", "trainer.critic_warmup=10"]
    assert notes(*words) == []
    assert "the run has 7" in notes(*words, total_steps=7)[0]


def test_the_losses_that_aggregate_in_one_way_are_those_that_the_algorithms_register() -> None:
    fixed = {name: get_policy_loss_fn(name).fixed_agg_mode for name in POLICY_LOSSES}
    assert {name: mode for name, mode in fixed.items() if mode} == FIXED_AGGREGATION
