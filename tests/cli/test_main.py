"""The command line: help, errors as one paragraph, exit codes, and nothing heavy loaded before it is needed."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from podium import __version__
from podium.cli.main import main
from podium.cli.train import count_train_rows, split_words
from podium.config import Config, load_config
from podium.errors import ConfigError, TrainingError

GOOD = "actor_rollout_ref.rollout.n=4"
HEAVY = ("torch", "ray", "transformers", "omegaconf", "rich", "numpy")


def modules_after(code: str) -> set[str]:
    code = f"import sys, json\n{code}\njson.dump(sorted(sys.modules), sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    return set(json.loads(done.stderr.splitlines()[-1]))


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    """What stderr says, whatever the line breaks."""
    return " ".join(capsys.readouterr().err.split())


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A stand-in for the trainer, so that these tests load no torch."""
    module = types.ModuleType("podium.trainer.main_ppo")
    module.run_ppo = lambda config: 0  # type: ignore[attr-defined]
    package = types.ModuleType("podium.trainer")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "podium.trainer", package)
    monkeypatch.setitem(sys.modules, "podium.trainer.main_ppo", module)
    return module


@pytest.mark.parametrize("code", ["import podium", "from podium.cli.main import main\nassert main(['--help']) == 0"])
def test_importing_podium_and_asking_for_help_load_nothing_heavy(code: str) -> None:
    assert modules_after(code).isdisjoint(HEAVY)


def test_a_dry_run_loads_neither_torch_nor_ray_and_starts_no_process() -> None:
    code = f"from podium.cli.main import main\nassert main(['train', {GOOD!r}, '--dry-run']) == 0"
    assert modules_after(code).isdisjoint({"torch", "ray", "transformers", "multiprocessing.context"})


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]])
def test_help_fits_a_screen_and_has_examples(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("  podium train ") for line in lines)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"podium {__version__}\n"


@pytest.mark.parametrize("words", [[], ["trian"]])
def test_a_missing_or_unknown_command_is_exit_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "train" in capsys.readouterr().err


def test_a_dry_run_prints_the_batch_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", GOOD, "--dry-run", "data.train_batch_size=32", "critic.enable=true"]) == 0
    text = capsys.readouterr().out
    assert "32 prompts × 4 samples" in text
    assert "steps in total" in text
    assert "note: the critic is trained but grpo does not use its values" in text
    assert "Nothing was started." in text


def test_wrong_settings_are_one_paragraph_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "lr=1e-5"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "podium: error: the command line: unknown key 'lr'; did you mean actor_rollout_ref.actor.optim.lr"
    )
    assert "Traceback" not in error
    assert main(["train", "actor_rollout_ref.rollout.n=1"]) == 2
    assert "a group of one" in shown(capsys)


def test_options_that_do_not_exist_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--trainer.seed=3"]) == 2
    assert "a setting is written without dashes: trainer.seed=3" in shown(capsys)
    assert main(["train", "--fast"]) == 2
    assert "'--fast' is not an option" in capsys.readouterr().err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "lr=1", "--debug"]) == 2
    error = shown(capsys)
    assert error.startswith("Traceback (most recent call last)")
    assert "podium: error: the command line: unknown key 'lr'" in error


def test_training_gets_the_resolved_config_and_its_exit_code_is_ours(trainer: types.ModuleType, tmp_path: Path) -> None:
    got: list[Config] = []
    trainer.run_ppo = lambda config: got.append(config) or 7  # type: ignore[attr-defined]
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("trainer: {seed: 5}\n")
    assert main(["train", str(recipe), GOOD, "--debug", "trainer.nnodes=2"]) == 7
    assert (got[0].trainer.seed, got[0].trainer.runtime, got[0].actor_rollout_ref.rollout.n) == (5, "ray", 4)


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (TrainingError("10 updates in a row were not finite"), 1, "podium: error: 10 updates in a row were not finite"),
        (ConfigError("no such task"), 2, "podium: error: no such task"),
        (ZeroDivisionError("division by zero"), 1, "unexpected ZeroDivisionError in fail"),
        (KeyboardInterrupt(), 130, "podium: interrupted"),
    ],
)
def test_a_failed_run_ends_with_a_paragraph_and_keeps_the_traceback(
    error: BaseException,
    code: int,
    says: str,
    trainer: types.ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(config: Config) -> int:
        Path(config.trainer.default_local_dir).mkdir()
        raise error

    trainer.run_ppo = fail  # type: ignore[attr-defined]
    assert main(["train", GOOD, f"trainer.default_local_dir={tmp_path / 'run'}"]) == code
    text = shown(capsys)
    assert says in text
    assert "Traceback (most" not in text
    assert type(error).__name__ in (tmp_path / "run" / "console.log").read_text()


def test_the_first_word_is_a_recipe_unless_it_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b.yaml").touch()
    assert split_words(["grpo", "x=1"]) == ("grpo", ["x=1"])
    assert split_words(["x=1", "y=2"]) == (None, ["x=1", "y=2"])
    assert split_words(["a=b.yaml"]) == ("a=b.yaml", [])
    assert split_words([]) == (None, [])


def test_rows_are_counted_without_loading_the_data(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"prompt": ["a"] * 7}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text('{"prompt": "x"}\n\n{"prompt": "y"}\n')
    (tmp_path / "broken.parquet").write_text("not parquet")

    def count(*files: object) -> int | None:
        return count_train_rows(load_config(None, [f"data.train_files=[{', '.join(map(str, files))}]"]))

    assert count(tmp_path / "a.parquet", tmp_path / "b.jsonl", "'task:addition?rows=10'") == 19
    assert count(tmp_path / "broken.parquet") is None
    assert count(tmp_path) is None


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """`podium runs | head -2`"""
    code = "import sys; from podium.cli import main, runs\n"
    code += "def run(arguments):\n    print('line'); raise BrokenPipeError\n"
    code += "runs.run = run; sys.exit(main.main(['runs']))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("told_as", [AttributeError, ConfigError])
def test_an_interrupt_that_a_library_turns_into_another_error_is_an_interrupt(
    told_as: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """OmegaConf's clean-up fails when it is hit in the middle of making a node."""

    def run(arguments: Any) -> int:
        try:
            try:
                raise KeyboardInterrupt
            finally:
                raise AttributeError("half made")
        except AttributeError as error:
            raise told_as(str(error)) from None

    monkeypatch.setattr("podium.cli.runs.run", run)
    assert main(["runs"]) == 130
    assert capsys.readouterr().err == "podium: interrupted\n"
