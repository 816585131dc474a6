from __future__ import annotations

from pathlib import Path

import pytest

from podium.config import check_config, load_config
from podium.errors import ConfigError


def problems(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_config(load_config(None, words))
    return str(caught.value)


def test_the_built_in_search_task_brings_its_corpus() -> None:
    config = load_config(None, ["do_search=true", "data.train_files=task:search?rows=100"])
    check_config(config)
    assert config.retriever.corpus == "task:search"
    assert config.is_multi_turn and not config.has_tools


def test_a_corpus_file_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.jsonl").write_text("{}")
    monkeypatch.chdir(tmp_path)
    config = load_config(None, ["do_search=true", "retriever.corpus=c.jsonl", "agent.tools=[f.py:g]"])
    assert config.retriever.corpus == str(tmp_path / "c.jsonl")
    assert config.agent.tools == [f"{tmp_path}/f.py:g"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["do_search=true"], "do_search needs documents"),
        (["do_search=true", "retriever.corpus=/no/such.jsonl"], "there is no file /no/such.jsonl"),
        (["do_search=true", "retriever.url=localhost:8000"], "must begin with http"),
        (["do_search=true", "retriever.url=http://h", "agent.tools=[python]"], "an episode has one environment"),
        (["agent.environment=here"], "must be module:Class"),
        (["agent.tools=[pyton]"], "must be module:function, file.py:function, or python"),
        (["data.max_start_length=600"], "is more than data.max_prompt_length"),
        (["max_turns=-1"], "max_turns = -1 must be at least 0"),
        (["retriever.topk=-1"], "retriever.topk = -1"),
        (["agent.max_failure_rate=2"], "agent.max_failure_rate = 2"),
    ],
)
def test_what_does_not_fit_is_said_with_its_fix(words: list[str], reason: str) -> None:
    assert reason in problems(*words)


def test_a_single_turn_is_the_default() -> None:
    assert not load_config(None, []).is_multi_turn


def test_the_recipe_is_sound() -> None:
    check_config(load_config("recipes/search.yaml"))
