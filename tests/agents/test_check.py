from __future__ import annotations

from pathlib import Path

import pytest

from podium.agents.check import Finding, check_environment

FILE = Path(__file__).parent / "user_environments.py"


def check(name: str, **kwargs: object) -> list[Finding]:
    return check_environment(f"{FILE}:{name}", kwargs)


def test_a_sound_environment_has_nothing_but_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CALL_S", "SLOW_S", "BLOCKING_S"):
        monkeypatch.setattr(f"podium.agents.check.{name}", 300.0)  # a busy machine is no fault of the environment
    findings = check("GuessNumber", bonus=0.5)
    assert [finding.level for finding in findings] == ["ok"]
    assert "7 episodes" in findings[0].message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Raising", "step() raised ZeroDivisionError: on purpose"),
        ("NotAsync", "step() must be async"),
        ("Returning", "step() must return an Observation, not str"),
        ("NoMethods", "has no reset, step, close"),
        ("Missing", "has no function 'Missing'"),
    ],
)
def test_what_is_wrong_is_said_first(name: str, words: str) -> None:
    findings = check(name)
    assert findings[0].level == "error"
    assert words in findings[0].message


def test_a_call_that_blocks_the_loop_is_a_warning() -> None:
    assert any("blocked the event loop" in finding.message for finding in check("Blocking"))


def test_an_unknown_constructor_argument_is_named() -> None:
    (finding,) = check("GuessNumber", bonos=1.0)
    assert "did you mean 'bonus'?" in finding.message
