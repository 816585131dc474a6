"""Conversations, chat template and length policy."""

from __future__ import annotations

import copy
import json

import pytest

from podium.data.prompts import PromptError, build_messages, encode_messages, fit_prompt, read_tools


def test_a_plain_string_is_one_user_message():
    assert build_messages("1+1=") == [{"role": "user", "content": "1+1="}]


def test_the_system_prompt_is_added_only_where_there_is_none():
    assert build_messages("hi", "be brief")[0] == {"role": "system", "content": "be brief"}
    own = [{"role": "system", "content": "mine"}, {"role": "user", "content": "hi"}]
    assert build_messages(own, "be brief") == own


def test_the_rows_own_messages_are_left_alone():
    prompt = [{"role": "user", "content": "hi", "name": None}]
    build_messages(prompt, "be brief")
    assert prompt == [{"role": "user", "content": "hi", "name": None}]


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (7, "not int"),
        (None, "not NoneType"),
        ([], "empty"),
        ("", "empty"),
        (["hi"], "not str"),
        ([{"role": "user"}], r"found the keys \['role'\]"),
        ([{"role": "user", "content": 3}], "role and content as text"),
    ],
)
def test_a_malformed_prompt_is_refused_with_its_reason(prompt, reason):
    with pytest.raises(PromptError, match=reason):
        build_messages(prompt)


def test_the_prompt_ends_where_the_assistant_begins(tokenizer):
    tokens = encode_messages(tokenizer, build_messages("1+2=", "add"))
    assert tokenizer.decode(tokens) == (
        "<|im_start|>system\nadd<|im_end|>\n<|im_start|>user\n1+2=<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_conversation_that_ends_with_the_assistant_is_continued(tokenizer):
    messages = [{"role": "user", "content": "27+58="}, {"role": "assistant", "content": "the sum is"}]
    assert tokenizer.decode(encode_messages(tokenizer, messages)).endswith("<|im_start|>assistant\nthe sum is")


def test_without_a_chat_template_text_is_encoded_as_it_is(tokenizer):
    plain = copy.deepcopy(tokenizer)
    plain.chat_template = None
    assert plain.decode(encode_messages(plain, build_messages("1+2="))) == "1+2="
    with pytest.raises(PromptError, match="no chat template"):
        encode_messages(plain, build_messages("1+2=", "add"))


def test_a_conversation_the_template_refuses_is_a_prompt_error(tokenizer):
    strict = copy.deepcopy(tokenizer)
    strict.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(PromptError, match="roles must alternate"):
        encode_messages(strict, build_messages("hi"))


@pytest.mark.parametrize("policy", ["error", "drop", "truncate_left"])
def test_a_prompt_up_to_the_limit_is_kept_by_every_policy(policy):
    assert fit_prompt([1, 2, 3], 4, policy) == [1, 2, 3]
    assert fit_prompt([1, 2, 3, 4], 4, policy) == [1, 2, 3, 4]


def test_a_prompt_past_the_limit_is_cut_on_the_left_dropped_or_refused():
    assert fit_prompt([1, 2, 3, 4, 5], 4, "truncate_left") == [2, 3, 4, 5]
    assert fit_prompt([1, 2, 3, 4, 5], 4, "drop") is None
    with pytest.raises(PromptError, match=r"5 tokens, data\.max_prompt_length .*is 4"):
        fit_prompt([1, 2, 3, 4, 5], 4, "error")


def test_a_prompt_that_the_tokenizer_makes_nothing_of_is_refused(tokenizer, monkeypatch):
    monkeypatch.setattr(type(tokenizer), "encode", lambda *args, **kwargs: [])
    with pytest.raises(PromptError, match="makes no token of the prompt"):
        encode_messages(tokenizer, build_messages("2+2="))


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {}}}}}
TOOL_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }}({{ tool | tojson }}) | {% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls or [] %}!{{ call.function.name }}{% endfor %} | {% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}quick {% endif %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture
def with_tools(tokenizer):
    copied = copy.deepcopy(tokenizer)
    copied.chat_template = TOOL_TEMPLATE
    return copied


@pytest.mark.parametrize("column", [[WEATHER], json.dumps([WEATHER]), [json.dumps(WEATHER)]], ids=str)
def test_a_rows_tools_are_shown_by_the_template(with_tools, column):
    tokens = encode_messages(with_tools, build_messages("rain?", "be brief"), read_tools(column))
    text = with_tools.decode(tokens)
    assert text == f"weather({json.dumps(WEATHER)}) | system: be brief | user: rain? | assistant:"


def test_nulls_that_a_parquet_file_adds_to_a_tool_are_taken_out_again():
    filled = {
        "type": "function",
        "function": {"name": "weather", "strict": None, "parameters": {"properties": {"city": {}}}},
    }
    assert read_tools([filled]) == [WEATHER]


@pytest.mark.parametrize("column", [None, [], ()])
def test_no_tools_are_none(column):
    assert read_tools(column) is None


@pytest.mark.parametrize("column", ["{no json", [3], 7])
def test_tools_that_are_none_are_refused(column):
    with pytest.raises(PromptError, match="tools"):
        read_tools(column)


def test_tools_that_nothing_shows_are_refused_not_lost(tokenizer):
    with pytest.raises(PromptError, match="the chat template does not show any"):
        encode_messages(tokenizer, build_messages("rain?"), [WEATHER])
    plain = copy.deepcopy(tokenizer)
    plain.chat_template = None
    with pytest.raises(PromptError, match="no chat template to show them in"):
        encode_messages(plain, build_messages("rain?"), [WEATHER])


def test_a_turn_that_only_calls_tools_needs_no_content(with_tools):
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "weather", "arguments": {}}}]}
    messages = build_messages([{"role": "user", "content": "rain?"}, call, {"role": "tool", "content": "no"}])
    assert with_tools.decode(encode_messages(with_tools, messages)).endswith("!weather | tool: no | assistant:")


def test_arguments_of_the_template_reach_it(with_tools):
    quick = encode_messages(with_tools, build_messages("rain?"), options={"enable_thinking": False})
    assert with_tools.decode(quick).endswith("quick assistant:")


def test_content_in_parts_of_text_is_their_text(tokenizer):
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "2="}]
    expected = encode_messages(tokenizer, build_messages("1+2="))
    assert encode_messages(tokenizer, build_messages([{"role": "user", "content": parts}])) == expected
    with pytest.raises(PromptError, match="images"):
        encode_messages(tokenizer, build_messages([{"role": "user", "content": [*parts, {"type": "image"}]}]))
