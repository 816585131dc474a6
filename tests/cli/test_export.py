from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from podium.checkpoint import export
from podium.checkpoint.export import export_hf
from podium.checkpoint.store import CheckpointStore
from podium.cli.main import main
from podium.config.schema import ModelConfig
from podium.models.load import load_causal_lm, load_tokenizer


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of steps 1 and 2; in step 2 the first weight is 2."""
    folder = tmp_path_factory.mktemp("exported")
    tokenizer, model = load_tokenizer("builtin:tiny", False), load_causal_lm(ModelConfig(path="builtin:tiny"))
    store = CheckpointStore(folder / "checkpoints")
    for step in (1, 2):
        next(model.parameters()).data.view(-1)[0] = float(step)
        weights = list(model.named_parameters())
        store.save(step, {}, lambda path: export_hf(weights, model.config, tokenizer, path / "hf"))  # noqa: B023
    return folder


def first_weight(folder: Path) -> torch.Tensor:
    return next(AutoModelForCausalLM.from_pretrained(folder).parameters()).detach().view(-1)[0]


def test_the_newest_step_is_exported_and_loads(run_folder: Path, tmp_path: Path) -> None:
    assert main(["export", str(run_folder), str(tmp_path / "out")]) == 0
    assert first_weight(tmp_path / "out") == 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    generation = GenerationConfig.from_pretrained(tmp_path / "out")
    assert generation.eos_token_id == tokenizer.eos_token_id and generation.pad_token_id == tokenizer.pad_token_id


def test_any_step_in_any_number_type(run_folder: Path, tmp_path: Path) -> None:
    words = ["export", str(run_folder), str(tmp_path / "out"), "--step", "1", "--dtype", "bfloat16"]
    assert main(words) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert first_weight(tmp_path / "out") == 1 and next(model.parameters()).dtype == torch.bfloat16


def test_a_checkpoint_folder_works_too(run_folder: Path, tmp_path: Path) -> None:
    assert main(["export", str(run_folder / "checkpoints" / "global_step_1"), str(tmp_path / "out")]) == 0
    assert first_weight(tmp_path / "out") == 1


def test_mistakes_are_explained(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for words, said in (
        (["export", str(run_folder)], "takes a run or checkpoint and a new folder"),
        (["export", str(tmp_path / "none"), "out"], "there is no folder"),
        (["export", str(run_folder), str(tmp_path / "out"), "--step", "9"], "no checkpoint of step 9; it has 1, 2"),
        (["export", str(run_folder), str(tmp_path / "full")], "already holds files"),
        (["export", str(run_folder), str(tmp_path / "out"), "--adapter"], "was not trained with LoRA"),
    ):
        assert main(words) != 0
        assert said in " ".join(capsys.readouterr().err.split()), words


def test_a_model_of_several_files_keeps_its_other_ends_and_defaults_and_can_be_read_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, model = load_tokenizer("builtin:tiny", False), load_causal_lm(ModelConfig(path="builtin:tiny"))
    monkeypatch.setattr(export, "SHARD_BYTES", 500_000)
    defaults = GenerationConfig(eos_token_id=[7, tokenizer.eos_token_id], temperature=0.6, do_sample=True)
    store = CheckpointStore(tmp_path / "checkpoints")
    weights = list(model.named_parameters())
    store.save(1, {}, lambda path: export_hf(weights, model.config, tokenizer, path / "hf", defaults))
    for dtype in ("float32", "bfloat16"):
        out = tmp_path / dtype
        assert main(["export", str(tmp_path), str(out), "--dtype", dtype]) == 0
        files = sorted(out.glob("*.safetensors"))
        assert len(files) > 2 and files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
        loaded = dict(AutoModelForCausalLM.from_pretrained(out, dtype="auto").named_parameters())
        assert all(loaded[name].equal(tensor.to(loaded[name].dtype)) for name, tensor in weights)
        assert {tensor.dtype for tensor in loaded.values()} == {getattr(torch, dtype)}
        assert all(path.stat().st_mode == (out / "config.json").stat().st_mode for path in files)
        generation = GenerationConfig.from_pretrained(out)
        assert generation.eos_token_id == [tokenizer.eos_token_id, 7] and generation.temperature == 0.6


def test_defaults_that_contradict_themselves_do_not_cost_the_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer, model = load_tokenizer("builtin:tiny", False), load_causal_lm(ModelConfig(path="builtin:tiny"))
    contradicting = GenerationConfig(eos_token_id=7)
    contradicting.num_return_sequences, contradicting.do_sample = 4, False
    export_hf(model.named_parameters(), model.config, tokenizer, tmp_path, contradicting)
    assert GenerationConfig.from_pretrained(tmp_path).eos_token_id == tokenizer.eos_token_id
    assert "contradict themselves" in caplog.text
