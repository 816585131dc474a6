"""The commands around training: each helps itself on a screen, and does what it says on a tiny model."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from podium.cli.main import GROUPS, main

COMMANDS = [name for group in GROUPS for name in group]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples_on_a_screen(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 46
    assert max(map(len, lines)) <= 100
    assert "examples:" in lines
    assert any(f"podium {command}" in line for line in lines)


def test_all_commands_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 30
    assert all(f"  {command} " in text for command in COMMANDS)


def test_a_misspelt_command_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chekc"]) == 2
    assert "did you mean 'check'" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["before", "behind"])
def test_debug_shows_the_traceback_of_any_command(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["runs", "nowhere"]
    assert main([*words, "--debug"] if place == "behind" else ["runs", "--debug", "nowhere"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert main(words) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_generate_writes_an_answer_per_prompt_and_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "builtin:tiny", "12+34=", "11+11="]) == 0
    assert capsys.readouterr().out == "12+34=\t46\n11+11=\t22\n"
    assert main(["generate", "builtin:tiny", "12+34=", "--n", "3", "--temperature", "1", "--max-tokens", "4"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize(
    "words, said",
    [(["generate"], "name a model first"), (["generate", "builtin:tiny", "1+1=", "--n", "2"], "greedy samples"),
     (["chat", "builtin:tiny", "more"], "takes one model"), (["eval", "data.val_files=x"], "needs a model first"),
     (["bench", "--steps", "1"], "at least 2"), (["completion", "csh"], "bash, zsh, fish")],
)  # fmt: skip
def test_wrong_words_are_answered_with_the_right_ones(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_chat_answers_until_an_empty_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("12+34=\n/new\n11+11=\n\nnot read\n"))
    assert main(["chat", "builtin:tiny"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["> 46", "> > 22", "> "]


def test_a_run_is_listed_evaluated_and_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["data.train_files=task:addition?rows=32", "data.val_files=[task:addition?rows=8]"]
    small += ["data.train_batch_size=8", "data.max_response_length=6", "actor_rollout_ref.rollout.n=2"]
    small += ["trainer.experiment_name=one", "trainer.total_training_steps=2", "trainer.logger=[]"]
    assert main(["train", *small]) == 0
    capsys.readouterr()
    assert main(["runs", "--json"]) == 0
    (shown,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (shown["id"], shown["status"], shown["step"]) == ("podium/one", "finished", 2)
    assert main(["runs"]) == 0
    assert "podium/one" in capsys.readouterr().out
    before = (tmp_path / "runs/podium/one/metrics.jsonl").read_bytes()
    assert main(["eval", "runs/podium/one", "data.val_files=task:addition?rows=4", "--out", "answers"]) == 0
    assert "val/test_score/addition" in capsys.readouterr().out
    assert len((tmp_path / "answers/validation/0.jsonl").read_text().splitlines()) == 4
    assert main(["bench", *small, "--steps", "2"]) == 0
    text = capsys.readouterr().out
    assert "update_actor" in text and "tokens/s per worker" in text
    assert (tmp_path / "runs/podium/one/metrics.jsonl").read_bytes() == before, "neither touches the run"


@pytest.mark.parametrize(
    "typed, wanted",
    [(["tr"], ["train", "train-reward"]), (["train", "trainer.se"], ["trainer.seed="]),
     (["check", "--g"], ["--gpu-memory"]), (["nowhere", "x"], [""])],
)  # fmt: skip
def test_completion(typed: list[str], wanted: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "--words", *typed]) == 0
    assert capsys.readouterr().out.split("\n")[:-1] == wanted


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_asks_podium(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "podium completion --words" in capsys.readouterr().out


def test_without_any_runs_the_list_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 0
    assert "podium train quickstart" in capsys.readouterr().out


def test_a_recipe_of_a_python_program_says_where_its_rows_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("data: {train_files: ['memory://train']}\n")
    assert main(["train", str(tmp_path / "config.yaml")]) == 2
    assert "held by a Python program" in " ".join(capsys.readouterr().err.split())
