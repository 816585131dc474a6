from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_engine import ScriptedEngine

from podium.agents.environment import EpisodeRow, Observation
from podium.agents.episode import Episode
from podium.agents.generation import LLMGenerationManager
from podium.agents.limits import ContextLimit, Limits, TurnLimit
from podium.agents.tool_calls import BadCall, ToolCall, check_arguments, parse_tool_calls
from podium.agents.tools import Tool, ToolEnvironments, function_tool, make_tool_environments, python_tool
from podium.agents.turns import TurnFormat
from podium.config.schema import AgentConfig
from podium.engines.rollout.base import SamplingParams, StopReason
from podium.errors import ConfigError

FILE = Path(__file__).parent / "tool_functions.py"


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def play(tools: ToolEnvironments, *turns: str) -> list[Observation]:
    """What each turn is answered with."""

    async def run() -> list[Observation]:
        await tools.start()
        environment = tools.make()
        answers = [await environment.step(turn, []) for turn in turns]
        await tools.close()
        return answers

    return asyncio.run(run())


def tools_of(*names: str, timeout_s: float = 300.0) -> ToolEnvironments:
    return ToolEnvironments([function_tool(f"{FILE}:{name}") for name in names], timeout_s=timeout_s)


# ---- calls


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("plain text", []),
        ('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', [ToolCall("f", {"x": 1})]),
        (
            'a <tool_call>{"name": "f"}</tool_call> b <tool_call>{"name": "g"}</tool_call>',
            [ToolCall("f", {}), ToolCall("g", {})],
        ),
        ('[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]', [ToolCall("f", {"x": 1})]),
        ('<|python_tag|>{"name": "f", "parameters": {"x": 1}}', [ToolCall("f", {"x": 1})]),
        ('<tool_call>{"name": "f", "arguments": "{\\"x\\": 2}"}</tool_call>', [ToolCall("f", {"x": 2})]),
    ],
)
def test_calls_are_found_in_every_form(text: str, calls: list[ToolCall]) -> None:
    assert parse_tool_calls(text) == calls


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{oops</tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
        "<tool_call>",
    ],
)
def test_a_malformed_call_is_a_bad_call_with_a_reason(text: str) -> None:
    (bad,) = parse_tool_calls(text)
    assert isinstance(bad, BadCall) and bad.reason


SCHEMA = {
    "properties": {
        "n": {"type": "integer"},
        "unit": {"type": "string", "enum": ["c", "k"]},
        "items": {"type": "array", "items": {"type": "number"}},
        "maybe": {"type": "string", "nullable": True},
    },
    "required": ["n"],
}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"n": 1}, None),
        ({"n": 1, "unit": "c", "items": [1, 2.5], "maybe": None}, None),
        ({}, "'n' is missing"),
        ({"n": "1"}, "'n' must be integer, not str"),
        ({"n": True}, "'n' must be integer, not bool"),
        ({"n": 1, "unit": "f"}, "'unit' must be one of c, k"),
        ({"n": 1, "items": [1, "x"]}, "'items[1]' must be number"),
        ({"n": 1, "m": 2}, "no argument 'm'"),
    ],
)
def test_arguments_are_checked_against_the_schema(arguments: dict[str, Any], problem: str | None) -> None:
    found = check_arguments(arguments, SCHEMA)
    assert (found is None) if problem is None else problem in (found or "")


# ---- functions


def test_a_function_answers_and_a_turn_without_a_call_is_the_answer() -> None:
    product, both, answer = play(
        tools_of("multiply", "weather"),
        call("multiply", first=6, second=7),
        call("multiply", first=2, second=3) + call("weather", town="Rome", unit="kelvin"),
        "It is 42.",
    )
    assert (product.text, product.num_calls, product.num_errors, product.done) == ("42", 1, 0, False)
    assert both.text == '6\n{"town": "Rome", "temperature": "20 kelvin"}' and both.num_calls == 2
    assert answer.done and answer.stop_reason is StopReason.ANSWERED


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        (call("multiply", first=1), "multiply: the argument 'second' is missing"),
        (call("multiply", first="a", second=2), "must be integer, not str"),
        (call("multipy", first=1, second=2), "there is no tool 'multipy'; did you mean 'multiply'?"),
        (call("fail", reason="on purpose"), "fail failed: ValueError: on purpose"),
        (call("hang", seconds=3600), "hang did not answer within 0.3 s"),
        ("<tool_call>{</tool_call>", "not valid JSON"),
    ],
)
def test_every_error_becomes_an_observation(turn: str, words: str) -> None:
    (observation,) = play(tools_of("multiply", "fail", "hang", timeout_s=0.3 if "hang" in turn else 300.0), turn)
    assert observation.text.startswith("Error: ") and words in observation.text
    assert observation.num_errors == 1 and not observation.done


def test_a_function_that_cannot_be_described_is_refused() -> None:
    with pytest.raises(ConfigError, match="Give every argument a type"):
        function_tool(f"{FILE}:untyped")


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two tools are named 'multiply'"):
        play(tools_of("multiply", "multiply"))


# ---- the interpreter


def test_the_interpreter_runs_code_in_the_sandbox() -> None:
    printed, silent, raised = play(
        ToolEnvironments([python_tool(120.0)], timeout_s=300.0),
        call("python", code="print(sum(range(10)))"),
        call("python", code="x = 1"),
        call("python", code="1/0"),
    )
    (endless,) = play(ToolEnvironments([python_tool(2.0)], timeout_s=300.0), call("python", code="while True: pass"))
    assert printed.text == "45" and printed.num_errors == 0
    assert "no output" in silent.text
    assert "ZeroDivisionError" in raised.text and raised.num_errors == 1
    assert "did not answer" in endless.text or "failed" in endless.text
    assert endless.num_errors == 1


# ---- MCP


def test_tools_of_an_mcp_server(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp")
    monkeypatch.setattr("podium.agents.mcp_tools.START_S", 300.0)  # a busy machine starts it late
    config = AgentConfig(mcp_servers=[f"{sys.executable} {FILE}"], tools=[f"{FILE}:multiply"], tool_timeout_s=300.0)
    tools = make_tool_environments(config, tokenizer)
    total, broken, wrong = play(
        tools, call("add", a=2, b=3), call("broken"), call("add", a="x", b=1) + call("multiply", first=2, second=2)
    )
    assert total.text == "5"
    assert "broken failed" in broken.text and broken.num_errors == 1
    assert "must be integer" in wrong.text and wrong.text.endswith("\n4")
    assert tools.tools is not None and {tool["function"]["name"] for tool in tools.tools} == {
        "multiply",
        "add",
        "broken",
    }


def test_an_mcp_server_that_does_not_start_is_named(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp")
    monkeypatch.setattr("podium.agents.mcp_tools.START_S", 300.0)
    config = AgentConfig(mcp_servers=[f"{sys.executable} {os.devnull}"], tool_timeout_s=300.0)
    with pytest.raises(ConfigError, match=f"the MCP server .*{os.devnull}.* cannot be used"):
        play(make_tool_environments(config, tokenizer))


# ---- templates

QWEN = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<tool_call> </tool_call><|im_end|>\n{% endif %}{% for message in messages %}"
    "{% if message.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ message.content }}\n</tool_response>"
    "<|im_end|>\n"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def qwen_like(tokenizer: Any) -> Any:
    from podium.models.load import load_tokenizer

    other = load_tokenizer("builtin:tiny")
    other.chat_template = QWEN
    return other


def test_a_tools_answer_is_what_the_template_writes_between_two_turns(qwen_like: Any) -> None:
    turns = TurnFormat(qwen_like, 500, [])
    ids = turns.encode_observation(Observation("42", role="tool"), ended_turn=True)
    between = "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert qwen_like.decode(ids) == between
    cut = turns.encode_observation(Observation("42", role="tool"), ended_turn=False)
    assert qwen_like.decode(cut) == "<|im_end|>" + between
    # a conversation rendered in one piece has the very same tokens
    conversation: list[dict[str, Any]] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "call"}]
    whole = qwen_like.apply_chat_template(
        [*conversation, {"role": "tool", "content": "42"}], add_generation_prompt=True, tokenize=False
    )
    begun = qwen_like.apply_chat_template(conversation[:1], add_generation_prompt=True, tokenize=False)
    assert qwen_like.encode(begun + "call<|im_end|>") + ids == qwen_like.encode(whole)


def test_a_long_answer_is_cut_inside_its_frame(qwen_like: Any) -> None:
    ids = TurnFormat(qwen_like, 60, []).encode_observation(Observation("x" * 500, role="tool"), True)
    text = qwen_like.decode(ids)
    assert len(ids) == 60
    assert text.startswith("\n<|im_start|>user\n<tool_response>\nxxx") and text.endswith("assistant\n")


def test_a_template_without_tools_gets_them_in_the_system_message(tokenizer: Any, qwen_like: Any) -> None:
    tool = function_tool(f"{FILE}:multiply")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 x 7?"}]
    plain = tokenizer.decode(TurnFormat(tokenizer, 100, [tool.schema]).encode_prompt(messages))
    assert plain.startswith("<|im_start|>system\nBe brief.\n\nYou may call tools.") and '"multiply"' in plain
    native = qwen_like.decode(TurnFormat(qwen_like, 100, [tool.schema]).encode_prompt(messages[1:]))
    assert "# Tools" in native and "You may call tools" not in native


def test_an_episode_with_tools_from_prompt_to_answer(qwen_like: Any) -> None:
    turns = [call("multiply", first=6, second=7) + "<eos>", "42<eos>"]
    engine = ScriptedEngine(qwen_like, lambda context, _: turns[context.count("<tool_response>\n")])

    async def run() -> Episode:
        environments = ToolEnvironments([function_tool(f"{FILE}:multiply")])
        await environments.start()
        manager = LLMGenerationManager(
            engine, qwen_like, environments, Limits(TurnLimit(3), ContextLimit(5000)), max_obs_length=200
        )
        row = EpisodeRow(prompt=[{"role": "user", "content": "6 x 7?"}])
        ((episode,),) = await manager.run_llm_loop([row], [[1]], SamplingParams(200))
        return episode

    episode = asyncio.run(run())
    assert '"name": "multiply"' in qwen_like.decode(episode.prompt)
    written = qwen_like.decode([t for t, own in zip(episode.token_ids, episode.info_mask, strict=True) if own])
    assert written == turns[0].replace("<eos>", "<|im_end|>") + "42<|im_end|>"
    assert (episode.stop_reason, episode.num_turns, episode.num_calls) == (StopReason.ANSWERED, 2, 1)


def test_a_tool_is_a_plain_record() -> None:
    async def answer(arguments: dict[str, Any]) -> str:
        return f"hello {arguments['who']}"

    schema = {
        "type": "function",
        "function": {"name": "greet", "parameters": {"properties": {"who": {"type": "string"}}}},
    }
    (observation,) = play(ToolEnvironments([Tool("greet", schema, answer)]), call("greet", who="you"))
    assert observation.text == "hello you"
