"""A reward model scores a response at its last token, and its score joins the rule's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification

from podium.config import load_config
from podium.config.schema import Config, ModelConfig, RewardModelConfig
from podium.data.responses import Example, make_batch
from podium.errors import ConfigError, ModelError
from podium.models.load import load_tokenizer, resolve_path
from podium.models.value import load_value_model
from podium.rewards.manager import RewardResult
from podium.tracking import read_metrics
from podium.trainer.main_ppo import build_trainer, run_ppo
from podium.trainer.model_rewards import combine_scores, validation_scores
from podium.trainer.scoring import score_batch
from podium.workers.engines import make_train_engine
from podium.workers.reward_model import check_same_tokens

TOKENIZER: Any = load_tokenizer("builtin:tiny")
NAN = float("nan")


def save_classifier(folder: Path, num_labels: int = 1) -> Any:
    """A sequence classifier as Hugging Face saves it, on the built-in model's body with a random head."""
    torch.manual_seed(0)
    model: Any = AutoModelForSequenceClassification.from_pretrained(
        resolve_path("builtin:tiny"), num_labels=num_labels, dtype=torch.float32
    )
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return model.eval()


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("classifier")
    return folder, save_classifier(folder)


def test_a_sequence_classifier_gives_the_scores_it_gives_in_transformers(classifier: tuple[Path, Any]) -> None:
    folder, theirs = classifier
    examples = [Example([5, 6, 7], [8, 9, 2]), Example([5, 6, 7], [10]), Example([11, 12], [13, 14, 15, 16])]
    engine = make_train_engine("fsdp", load_value_model(ModelConfig(path=str(folder))), values_after=True)
    ours = engine.scores(make_batch(examples, TOKENIZER))
    for score, example in zip(ours, examples, strict=True):
        with torch.no_grad():
            logits = theirs(input_ids=torch.tensor([example.prompt + example.response])).logits
        torch.testing.assert_close(score, logits[0, 0], atol=1e-5, rtol=1e-4)


def test_a_classifier_with_several_labels_is_refused(tmp_path: Path) -> None:
    save_classifier(tmp_path, num_labels=3)
    with pytest.raises(ModelError, match="num_labels=1"):
        load_value_model(ModelConfig(path=str(tmp_path)))


@pytest.mark.parametrize("head", ["none", "zeros"])
def test_a_reward_model_that_cannot_score_is_refused_before_any_worker_starts(
    head: str, small: Callable[..., Config], tmp_path: Path
) -> None:
    folder = "builtin:tiny"
    if head == "zeros":
        folder = str(tmp_path / "critic")
        load_value_model(ModelConfig()).save(Path(folder))
    with pytest.raises(ModelError) as caught:
        run_ppo(small(f"reward_model.model.path={folder}"))
    assert folder in str(caught.value) and "podium train-reward" in str(caught.value)
    assert ("no score head" if head == "none" else "zeros alone") in str(caught.value)


def test_a_worker_refuses_it_too_and_a_critic_starts_from_it() -> None:
    with pytest.raises(ModelError, match="no score head"):
        load_value_model(ModelConfig(), needs_head=True)
    assert not load_value_model(ModelConfig()).value_head.weight.any()


def test_a_reward_model_that_is_only_a_hub_name_is_refused_with_the_command_that_fetches_it() -> None:
    with pytest.raises(ModelError, match="hf download someone/scorer"):
        load_value_model(ModelConfig(path="someone/scorer"), needs_head=True)


def test_a_reward_model_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text((Path(resolve_path("builtin:tiny")) / "config.json").read_text())
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[20:22]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(content))
    Tokenizer.from_file(str(file))
    with pytest.raises(ModelError, match="another vocabulary"):
        check_same_tokens(ModelConfig(), ModelConfig(path=str(tmp_path)))


def result(scores: list[float], without_rule: list[bool]) -> RewardResult:
    return RewardResult(torch.tensor(scores), torch.tensor(without_rule), [""] * len(scores), {}, {})


def test_scores_are_the_weighted_sum_of_rule_and_model() -> None:
    outcome = result([1.0, 0.0, NAN, NAN], [False, False, True, False])
    model = torch.tensor([0.5, -1.0, 2.0, 3.0])
    both = combine_scores(outcome, model, RewardModelConfig(weight=2.0, rule_weight=3.0))
    assert both.scores[:3].tolist() == [4.0, -2.0, 4.0]
    assert both.scores[3].isnan(), "a rule that failed leaves the row unscored"
    assert both.metrics["reward/rm_mean"] == pytest.approx(1.125)
    assert both.metrics["reward/rule_mean"] == pytest.approx(0.5)
    alone = combine_scores(outcome, model, RewardModelConfig(rule_weight=0.0))
    assert alone.scores.tolist() == model.tolist()


def test_a_score_that_is_not_finite_counts_as_none() -> None:
    outcome = result([1.0, 1.0], [False, False])
    both = combine_scores(outcome, torch.tensor([float("inf"), 1.0]), RewardModelConfig())
    assert both.scores.isnan().tolist() == [True, False]
    assert both.metrics["reward/unscored"] == 1.0


def test_validation_asks_the_rule_where_there_is_one() -> None:
    outcome = result([1.0, NAN], [False, True])
    assert validation_scores(outcome, torch.tensor([7.0, 8.0])).scores.tolist() == [1.0, 8.0]


@pytest.fixture
def small(tmp_path: Path, classifier: tuple[Path, Any]) -> Callable[..., Config]:
    def make(*words: str) -> Config:
        return load_config(
            None,
            [
                *("data.train_files=task:addition?rows=16", "data.val_files=task:addition?rows=8"),
                *("data.train_batch_size=4", "data.max_prompt_length=64", "data.max_response_length=8"),
                *("actor_rollout_ref.rollout.n=2", "actor_rollout_ref.rollout.kv_cache_gb=0.1"),
                *("trainer.total_training_steps=1", "trainer.val_before_train=false", "trainer.save_freq=0"),
                *("trainer.logger=[]", f"trainer.default_local_dir={tmp_path / 'run'}"),
                *("reward_model.enable=true", f"reward_model.model.path={classifier[0]}", *words),
            ],
        )

    return make


def test_the_score_lands_on_the_last_token_of_each_response(small: Callable[..., Config]) -> None:
    trainer = build_trainer(small("reward_model.rule_weight=0", "reward_model.weight=2"))
    try:
        trainer.init_workers()
        trainer._load_checkpoint()
        pending = trainer._submit_rollout()
        generated = trainer._join(pending.prompts, pending.output.get())
        batch, _ = score_batch(generated, trainer._reward)
    finally:
        trainer.shutdown()
    tensors = batch.tensors()
    mask, scores = tensors["response_mask"].bool(), tensors["token_level_scores"]
    last = mask.sum(-1) - 1
    rows = torch.arange(len(batch))
    torch.testing.assert_close(scores[rows, last], 2 * tensors["rm_scores"])
    assert int((scores != 0).sum()) == len(batch)
    assert np.allclose(np.array(list(batch.non_tensor_batch["reward/rm"]), float), tensors["rm_scores"].numpy())


@pytest.mark.parametrize("estimator", ["grpo", "remax"])
def test_a_step_with_rule_and_reward_model_runs(small: Callable[..., Config], estimator: str) -> None:
    config = small(f"algorithm.adv_estimator={estimator}")
    assert run_ppo(config) == 0
    (step,) = read_metrics(config.trainer.default_local_dir)
    assert step["critic/score/mean"] == pytest.approx(step["reward/rule_mean"] + step["reward/rm_mean"], abs=1e-5)
    assert step["val/test_score/addition"] in {x / 8 for x in range(9)}, "validation is the rule's"


def test_rows_that_nothing_scores_need_only_the_reward_model(small: Callable[..., Config], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n}+1=", "data_source": "chat"}) + "\n" for n in range(8)))
    words = (f"data.train_files={rows}", f"data.val_files={rows}")
    config = small(*words)
    assert run_ppo(config) == 0
    (step,) = read_metrics(config.trainer.default_local_dir)
    assert step["critic/score/mean"] == pytest.approx(step["reward/rm_mean"], abs=1e-5)
    assert step["reward/unscored"] == 0.0
    with pytest.raises(ConfigError, match="no built-in reward for data_source 'chat'"):
        run_ppo(small(*words, "reward_model.enable=false"))


def test_enabling_it_without_a_model_is_a_config_error(small: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match=r"reward_model\.model\.path") as caught:
        run_ppo(small("reward_model.model.path=''"))
    assert "podium train-reward" in str(caught.value) and "builtin:tiny" not in str(caught.value)
