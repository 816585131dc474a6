"""The column `agent_name`: which loop a row asks for, against the one that the run has.

All rows of a run go through one loop, which the settings choose: search, tools, an environment, or a single turn. A row
may say which it is made for; one that is made for another would be trained on as what it is not, so it is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from podium.config.schema import Config
from podium.errors import DataError

SETTING_OF = {
    "single_turn": "do_search=false and no agent.environment, agent.tools or agent.mcp_servers",
    "search": "do_search=true",
    "tool": "agent.tools or agent.mcp_servers",
    "environment": "agent.environment",
}
"""How each loop is chosen."""


@dataclass(frozen=True)
class AgentLoop:
    name: str
    """One of SETTING_OF."""
    environment: str = ""
    """The environment's own class name, by which rows may call it too."""

    def check(self, agent_name: str, where: str) -> None:
        """Raise unless that name means this loop."""
        if agent_name in (self.name, self.environment) and agent_name:
            return
        setting = SETTING_OF.get(agent_name)
        fix = f"{agent_name} needs {setting}" if setting else f"known are {', '.join(SETTING_OF)}"
        raise DataError(
            f"{where} has agent_name {agent_name!r}, but this run's rows all go through {self.name} "
            f"({SETTING_OF[self.name]}); {fix}. Rows of another loop belong in a file and a run of their own; without "
            "the column agent_name the settings alone decide"
        )


def agent_loop(config: Config) -> AgentLoop:
    """The loop that the settings choose."""
    if config.do_search:
        return AgentLoop("search")
    if config.agent.environment:
        return AgentLoop("environment", config.agent.environment.rpartition(":")[2])
    return AgentLoop("tool" if config.has_tools else "single_turn")
