"""A row may name the agent loop that it is made for; it must be the one that the run has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from podium.config import load_config
from podium.config.schema import DataConfig
from podium.data.agent_names import AgentLoop, agent_loop
from podium.data.dataset import RLHFDataset
from podium.errors import DataError

LOOPS = {
    "single_turn": [],
    "search": ["do_search=true", "data.train_files=task:search"],
    "tool": ["agent.tools=[python]"],
    "environment": ["agent.environment=my_module:Guess"],
}


@pytest.mark.parametrize("name", LOOPS)
def test_the_settings_choose_the_loop(name: str) -> None:
    loop = agent_loop(load_config(None, LOOPS[name]))
    assert loop.name == name
    loop.check(name, "rows.jsonl, row 3")
    for other in {*LOOPS, "react"} - {name}:
        with pytest.raises(DataError, match=r"rows\.jsonl, row 3 has agent_name"):
            loop.check(other, "rows.jsonl, row 3")


def test_an_environment_goes_by_its_own_name_too() -> None:
    AgentLoop("environment", "Guess").check("Guess", "row 1")


def test_rows_are_looked_at_when_the_run_is_known(tokenizer: Any, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": "1+1="}, {"prompt": "1+2=", "agent_name": "search_agent"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = RLHFDataset([str(file)], tokenizer, DataConfig())
    assert dataset[1]["raw_prompt"], "a tool that only reads rows has no loop"
    dataset.agent = AgentLoop("search")
    dataset.check_rows()
    dataset.agent = AgentLoop("single_turn")
    with pytest.raises(DataError, match=r"line 2 has agent_name 'search'.*do_search=true"):
        dataset.check_rows()
