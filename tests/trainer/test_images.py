"""Vision-language models: rows with images, through rollout, scoring and a step of training."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vision_models import FEATURES, picture, save_tiny_llava, score_and_update

from podium.config import load_config
from podium.config.schema import DataConfig, ModelConfig, OptimConfig, RolloutConfig
from podium.data.dataset import RLHFDataset
from podium.engines.rollout import make_rollout_engine
from podium.engines.rollout.base import ImagePrompt, SamplingParams
from podium.engines.train.torch import TorchEngine
from podium.errors import RolloutError
from podium.models.load import load_causal_lm, load_processor, load_tokenizer
from podium.protocol import DataProto, object_array
from podium.tracking import read_metrics
from podium.trainer.main_ppo import run_ppo
from podium.workers.rollout import Rollout

QUESTIONS = ["what is <image>?", "what is <image>?", "<image> or <image>", "no picture"]


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_llava(tmp_path_factory.mktemp("llava")))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two questions in the same words about other pictures, one about two pictures, one about none."""
    from podium.data.importers import write_rows

    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    colours = [[(0, 0)], [(255, 0)], [(128, 0), (128, 200)], []]
    rows = [
        {
            "data_source": "colours",
            "prompt": [{"role": "user", "content": question}],
            "images": [{"bytes": picture(*colour), "path": None} for colour in pictures],
            "reward_model": {"ground_truth": "red"},
        }
        for question, pictures in zip(QUESTIONS, colours, strict=True)
    ]
    write_rows(rows, path)
    return str(path)


@pytest.fixture
def prompts(llava: str, files: str) -> DataProto:
    dataset = RLHFDataset([files], load_tokenizer(llava), DataConfig(), processor=load_processor(llava))
    batch = DataProto.from_single_dict(dataset.collate_fn(dataset.fetch(range(4))))
    batch.non_tensor_batch["uid"] = object_array(list("abcd"))  # samples do not depend on the file's name
    return batch


def sampled(llava: str, prompts: DataProto, name: Any = "native", n: int = 3, **settings: Any) -> DataProto:
    config = RolloutConfig(name=name, n=n, kv_cache_gb=0.01, **{"max_num_seqs": 16} | settings)
    engine = make_rollout_engine(config, load_causal_lm(ModelConfig(path=llava)), load_tokenizer(llava))
    prompts.meta_info = {"seed": 0, "epoch": 0}  # with this seed no image token is among the samples
    output = Rollout(engine, config, DataConfig(max_response_length=8), 0).generate_sequences(prompts)
    keys = ["image_key"]
    return prompts.select(keys).repeat(n).union(output)


def plain_log_probs(llava: str, batch: DataProto) -> list[np.ndarray[Any, Any]]:
    """Of the response tokens, by transformers' own forward pass, one row at a time."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(llava).eval()
    found = []
    for row, images in enumerate(batch.non_tensor_batch["multi_modal_inputs"]):
        tensors = {name: tensor[row] for name, tensor in batch.tensors().items()}
        ids = tensors["input_ids"][tensors["attention_mask"].bool()]
        size = int(tensors["response_mask"].sum())
        extra = {} if images is None else {name: torch.as_tensor(array) for name, array in images.items()}
        with torch.no_grad():
            table = model(input_ids=ids[None], **extra).logits[0].log_softmax(-1)
        found.append(table[:-1].gather(1, ids[1:, None])[-size:, 0].numpy())
    return found


def test_a_prompt_has_a_token_for_each_feature_and_its_pixels_beside_it(prompts: DataProto) -> None:
    image_tokens = (prompts.tensors()["prompts"] == 264).sum(-1).tolist()
    assert image_tokens == [FEATURES, FEATURES, 2 * FEATURES, 0]
    shapes = [x and x["pixel_values"].shape for x in prompts.non_tensor_batch["multi_modal_inputs"]]
    assert shapes == [(1, 3, 16, 16), (1, 3, 16, 16), (2, 3, 16, 16), None]
    keys = prompts.tensors()["image_key"].tolist()
    assert keys[3] == 0 and len(set(keys)) == 4


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 8, "max_num_seqs": 8}], ids=["whole", "chunks"])
def test_both_engines_sample_what_transformers_gives(llava: str, prompts: DataProto, settings: dict[str, int]) -> None:
    ours, slow = sampled(llava, prompts, **settings), sampled(llava, prompts, "hf")
    assert ours.tensors()["responses"].tolist() == slow.tensors()["responses"].tolist()
    for row, expected in enumerate(plain_log_probs(llava, ours)):
        assert ours.tensors()["rollout_log_probs"][row, : len(expected)].numpy() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("budget", [16384, 24])
def test_a_train_engine_scores_what_transformers_gives(llava: str, prompts: DataProto, budget: int) -> None:
    batch = sampled(llava, prompts)
    engine = TorchEngine(load_causal_lm(ModelConfig(path=llava)), max_tokens_per_micro_batch=budget)
    scores = engine.log_probs(batch, temperature=1.0)["log_probs"]
    for row, expected in enumerate(plain_log_probs(llava, batch)):
        assert scores[row, : len(expected)].numpy() == pytest.approx(expected, abs=1e-4)


def test_a_sampled_image_token_is_a_token_like_any_other(llava: str, prompts: DataProto) -> None:
    batch = sampled(llava, prompts)
    batch.tensors()["responses"][:, 0] = 264
    batch.tensors()["input_ids"][:, prompts.tensors()["prompts"].shape[1]] = 264
    engine = TorchEngine(load_causal_lm(ModelConfig(path=llava)))
    assert engine.log_probs(batch, temperature=1.0)["log_probs"].isfinite().all()


def test_an_update_moves_the_vision_tower_too(llava: str, prompts: DataProto) -> None:
    module = load_causal_lm(ModelConfig(path=llava))
    before = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    engine = TorchEngine(module, optim=OptimConfig(lr=1e-2), total_steps=4)

    def loss(outputs: Any, rows: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        return -(outputs.log_probs * rows["response_mask"]).sum(), {}

    batch = sampled(llava, prompts)
    engine.update(batch, loss, float(batch.tensors()["response_mask"].sum()))
    moved = {name for name, tensor in module.named_parameters() if not torch.equal(tensor, before[name])}
    for part in ("vision_tower.embeddings.patch_embedding", "multi_modal_projector", "language_model.layers.0"):
        assert any(part in name for name in moved), part


@pytest.mark.parametrize("engine", ["native", "hf"])
def test_a_run_trains_on_rows_with_images(llava: str, files: str, tmp_path: Path, engine: str) -> None:
    reward = tmp_path / "rewards.py"
    reward.write_text("def f(data_source, solution_str, ground_truth, extra_info):\n    return len(solution_str)\n")
    config = load_config(
        None,
        [
            f"actor_rollout_ref.model.path={llava}",
            f"actor_rollout_ref.rollout.name={engine}",
            f"data.train_files=[{files}]",
            f"data.val_files=[{files}]",
            *("data.train_batch_size=4", "data.max_prompt_length=64", "data.max_response_length=8"),
            *("actor_rollout_ref.rollout.n=2", "actor_rollout_ref.rollout.kv_cache_gb=0.01", "reward.num_processes=0"),
            *("actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
            *("trainer.total_training_steps=1", "trainer.logger=[]", "trainer.save_freq=1"),
            f"reward.custom_reward_function={reward}:f",
            f"trainer.default_local_dir={tmp_path / 'run'}",
        ],
    )
    assert run_ppo(config) == 0
    (step,) = [record for record in read_metrics(tmp_path / "run") if "actor/grad_norm" in record]
    assert step["actor/grad_norm"] > 0 and step["rollout_corr/prob_diff"] < 1e-4
    saved = tmp_path / "run" / "checkpoints" / "global_step_1" / "hf"
    assert json.loads((saved / "config.json").read_text())["model_type"] == "llava"
    assert load_processor(str(saved)) is not None, "a saved model goes on with its processor"
    load_causal_lm(ModelConfig(path=str(saved)))


def test_an_engine_that_cannot_show_images_says_so(llava: str) -> None:
    engine = make_rollout_engine(RolloutConfig(kv_cache_gb=0.01), load_causal_lm(ModelConfig()), None)
    with pytest.raises(RolloutError, match="cannot show the model the images"):
        engine.generate([ImagePrompt([1, 2, 3], {})], SamplingParams(4))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda row: row["images"].append(row["images"][0]), "1 places for images and the row has 2"),
        (lambda row: row.update(images=[{"bytes": b"no picture"}]), "image 0 cannot be read"),
        (lambda row: row.update(images=[7]), "image 0 is int"),
    ],
)
def test_a_row_whose_images_cannot_be_used_is_quarantined(
    llava: str, tmp_path: Path, change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    from podium.data.quarantine import BadRow

    dataset = RLHFDataset(
        ["task:addition?rows=1"], load_tokenizer(llava), DataConfig(), processor=load_processor(llava)
    )
    row: dict[str, Any] = {"prompt": QUESTIONS[0], "images": [picture(3)]}
    change(row)
    source = {"name": "x", "__getitem__": lambda self, number: row, "number": lambda self, number: number + 1}
    dataset._sources = [type("Rows", (), source)()]  # type: ignore[list-item]
    with pytest.raises(BadRow, match=reason):
        dataset[0]


@pytest.mark.soak
def test_two_sharded_ranks_compute_what_one_does(llava: str, prompts: DataProto, tmp_path: Path) -> None:
    import torch.multiprocessing as mp

    (tmp_path / "batch").write_bytes(pickle.dumps(sampled(llava, prompts)))
    score_and_update(0, 1, str(tmp_path), llava, str(tmp_path / "batch"))
    mp.spawn(score_and_update, (2, str(tmp_path), llava, str(tmp_path / "batch")), nprocs=2)
    alone, *two = (pickle.loads((tmp_path / f"{name}.pkl").read_bytes()) for name in ("1_0", "2_0", "2_1"))
    assert not alone["sharded"] and all(rank["sharded"] for rank in two)
    assert sum(rank["log_probs"] for rank in two) == pytest.approx(alone["log_probs"], rel=1e-5)
    assert [rank["grad_norm"] for rank in two] == [pytest.approx(alone["grad_norm"], rel=1e-4)] * 2
