"""`podium check` finds planted mistakes before a worker starts, and says the fix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from podium.cli.main import main
from podium.models.load import load_tokenizer, resolve_path
from podium.single_controller import WorkerGroup

ROWS = [{"prompt": f"{a}+{a}=", "answer": str(2 * a), "data_source": "mine"} for a in range(64)]
REWARDS = {
    "good": "def compute_score(solution_str, ground_truth):\n    return float(solution_str.strip() == ground_truth)\n",
    "raises": "def compute_score(solution_str, ground_truth, extra_info):\n    return 1.0 / extra_info['divisor']\n",
    "returns_none": "def compute_score(solution_str):\n    print(solution_str)\n",
    "hangs": "def compute_score(solution_str):\n    while True:\n        pass\n",
    "constant": "def compute_score(solution_str):\n    return 0.0\n",
    "no_such_name": "def score(solution_str):\n    return 1.0\n",
}
SMALL = ["data.train_batch_size=8", "data.max_prompt_length=64", "data.max_response_length=8", "trainer.device=cpu"]


@pytest.fixture(autouse=True)
def no_worker_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a worker group was made")

    monkeypatch.setattr(WorkerGroup, "__init__", refuse)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.chdir(tmp_path)


def write(rows: list[Any], name: str = "train.jsonl") -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def reward(kind: str) -> str:
    Path(f"{kind}.py").write_text(REWARDS[kind])
    return f"reward.custom_reward_function={kind}.py:compute_score"


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["check", *SMALL, *words])
    return code, " ".join(capsys.readouterr().out.split())


def other_vocabulary() -> str:
    folder = Path("other")
    load_tokenizer("builtin:tiny").save_pretrained(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append(tokenizer["added_tokens"][-1] | {"id": 999, "content": "<more>"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "config.json").write_text((Path(resolve_path("builtin:tiny")) / "config.json").read_text())
    return str(folder)


def large_model() -> str:
    """The configuration of seven billion parameters, without any."""
    folder = Path("large")
    load_tokenizer("builtin:tiny").save_pretrained(folder)
    config = json.loads((Path(resolve_path("builtin:tiny")) / "config.json").read_text())
    config |= {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
    config |= {"num_key_value_heads": 4, "head_dim": 128, "vocab_size": 152064, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config | {"layer_types": ["full_attention"] * 28}))
    return f"actor_rollout_ref.model.path={folder}"


def test_a_sound_run_passes(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = check(capsys, f"data.train_files={write(ROWS)}", reward("good"))
    assert code == 0, said
    assert "the data's own answer 1, nonsense 0" in said and "nothing stands in the way" in said


DATA_MISTAKES: dict[str, tuple[list[Any], list[str], str, str]] = {
    "a row without a prompt": (
        [*ROWS[:20], {"text": "?"}, *ROWS[20:]], [], "line 21: no prompt", "data.max_bad_rows=1",
    ),
    "a message without content": (
        [{"prompt": [{"role": "user"}], "answer": "1"}, *ROWS], [], "line 1: a message needs role and", "repair",
    ),
    "prompts that are too long": (
        ROWS, ["data.max_prompt_length=4"], "train.jsonl, line 11 has 12", "set data.max_prompt_length=12",
    ),
    "fewer rows than a batch": (ROWS[:5], [], "5 training rows do not fill", "data.train_batch_size=5"),
    "an empty file": ([], [], "has no rows", "correct data.train_files"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", DATA_MISTAKES)
def test_mistakes_in_the_data(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows, words, found, fix = DATA_MISTAKES[mistake]
    code, said = check(capsys, f"data.train_files={write(rows)}", reward("good"), *words)
    assert code == 2
    assert found in said and fix in said, said


REWARD_MISTAKES = {
    "raises": ("KeyError: 'divisor'", "extra_info has the row's own columns"),
    "returns_none": ("returned None, which is no finite number", "a finite number for every row"),
    "hangs": ("timeout_s", "make it return in time"),
    "constant": ("gives 0 to everything", "right and wrong answers differ"),
    "no_such_name": ("has no function 'compute_score'; did you mean 'score'", "path/to/file.py:function"),
}


@pytest.mark.parametrize("mistake", REWARD_MISTAKES)
def test_mistakes_in_the_reward(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, fix = REWARD_MISTAKES[mistake]
    limit = f"reward.timeout_s={1 if mistake == 'hangs' else 300}"  # a busy machine is no mistake
    code, said = check(capsys, f"data.train_files={write(ROWS)}", reward(mistake), limit)
    assert code == 2
    assert fix in said, said
    assert found in said or (mistake == "hangs" and "1 s" in said), said


def test_a_data_source_that_nothing_scores(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = check(capsys, f"data.train_files={write(ROWS)}")
    assert code == 2
    assert "no built-in reward for data_source 'mine'" in said and "reward.custom_reward_function=" in said


SETTING_MISTAKES = {
    "a misspelt key": (["trainer.total_epoch=2"], "did you mean trainer.total_epochs"),
    "a value of the wrong kind": (["trainer.seed=many"], "it must be a whole number"),
    "a group of one": (["actor_rollout_ref.rollout.n=1"], "set n to 2 or more"),
    "a mini-batch that does not divide": (["actor_rollout_ref.actor.ppo_mini_batch_size=3"], "2 would fit"),
    "a file that is not there": (["data.val_files=val.parquet"], "there is no file val.parquet"),
    "a model that is not there": (["actor_rollout_ref.model.path=./nowhere"], "give a Hugging Face folder"),
}


@pytest.mark.parametrize("mistake", SETTING_MISTAKES)
def test_mistakes_in_the_settings(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, said_fix = SETTING_MISTAKES[mistake]
    code, said = check(capsys, *words)
    assert code == 2
    assert "PROBLEM" in said and said_fix in said, said


def test_a_model_too_large_for_the_gpu_and_what_would_fit(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = check(capsys, large_model(), "--gpu-memory", "80")
    assert code == 2
    assert "7.62 billion parameters" in said and "of 80.0 GB" in said
    assert "fix: spread it over" in said and "lora_rank" in said, said


def test_a_micro_batch_too_large_and_the_largest_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    words = [large_model(), "data.max_response_length=8000", "data.max_prompt_length=100", "data.train_batch_size=64"]
    code, said = check(
        capsys, *words, "actor_rollout_ref.actor.max_tokens_per_micro_batch=65536", "--gpu-memory", "192"
    )
    assert code == 2
    assert "max_tokens_per_micro_batch=" in said and "fits" in said, said


def test_sequences_beyond_the_models_reach(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = check(capsys, "data.max_response_length=4000")
    assert code == 2
    assert "reaches 2048 tokens" in said and "data.max_response_length=1984" in said


def test_a_reward_model_with_another_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = check(capsys, "reward_model.enable=true", f"reward_model.model.path=./{other_vocabulary()}")
    assert code == 2
    assert "another vocabulary" in said and "podium train-reward" in said


def test_a_reward_model_that_cannot_score(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = check(capsys, "reward_model.enable=true", "reward_model.model.path=builtin:tiny")
    assert code == 2
    assert "'builtin:tiny' has no score head" in said and "podium train-reward" in said


def test_rows_of_another_agent_loop(capsys: pytest.CaptureFixture[str]) -> None:
    rows = write([row | {"agent_name": "tool_agent"} for row in ROWS])
    code, said = check(capsys, f"data.train_files={rows}")
    assert code == 2
    assert "has agent_name 'tool'" in said and "agent.tools" in said


def test_an_estimator_that_asks_for_values_with_the_critic_off(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text("def mine(token_level_rewards, response_mask, values):\n    return values, values\n")
    code, said = check(capsys, "algorithm.adv_estimator=mine.py:mine", "critic.enable=false")
    assert code == 2
    assert "asks for `values`" in said and "critic.enable=true" in said
    Path("broken.py").write_text("import nothing_of_that_name\n")
    code, said = check(capsys, "algorithm.adv_estimator=broken.py:mine")
    assert code == 2
    assert "broken.py:mine cannot be imported: ModuleNotFoundError" in said


def test_more_workers_than_the_machine_has(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = check(capsys, "trainer.n_gpus_per_node=4096", "data.train_batch_size=64")
    assert code == 2
    assert "4096 workers are asked for, this machine has" in said and "set trainer.n_gpus_per_node=" in said


def test_several_nodes_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = check(capsys, "trainer.nnodes=2")
    assert code == 2
    assert "RAY_ADDRESS is not set" in said and "ray start" in said


def test_a_gpu_that_is_not_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, said = check(capsys, "trainer.device=cuda")
    assert code == 2
    assert "torch sees no GPU here" in said and "set trainer.device=auto or cpu" in said


def test_a_run_folder_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    Path("taken").write_text("a file")
    code, said = check(capsys, "trainer.default_local_dir=taken/run")
    assert code == 2
    assert "cannot be written" in said and "trainer.default_local_dir" in said


ENVIRONMENT = """
class Guess:
    {a}def reset(self, row):
        return None
    {a}def step(self, text, tokens):
        return {answer}
    {a}def close(self):
        pass
"""


@pytest.mark.parametrize(
    "mistake, a, answer, found",
    [("not async", "", "None", "must be async"), ("a wrong answer", "async ", "'higher'", "Observation")],
)
def test_mistakes_in_an_environment(
    mistake: str, a: str, answer: str, found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("game.py").write_text(ENVIRONMENT.format(a=a, answer=answer))
    for words in (["env", "game.py:Guess"], [*SMALL, "agent.environment=game.py:Guess"]):
        code = main(["check", *words])
        said = " ".join(capsys.readouterr().out.split())
        assert code == 2 and found in said and "fix: " in said, said


def test_a_retriever_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = check(capsys, "do_search=true", "retriever.url=http://127.0.0.1:9/retrieve")
    assert code == 2
    assert "does not answer" in said and "podium retrieve" in said


def test_a_rollout_engine_that_is_not_installed(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = check(capsys, "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.python=/no/python")
    assert code == 2 and "rollout.python=/no/python does not exist" in text and "make env-vllm" in text
