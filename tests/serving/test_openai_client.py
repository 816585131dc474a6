"""The `openai` package against our server: what it sends and what it makes of our answers."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest
from starlette.testclient import TestClient

from podium.engines.rollout.base import SamplingParams, StopReason
from podium.engines.rollout.request import Request
from podium.serving.generation import Generator
from podium.serving.server import make_app

SUM = [{"role": "user", "content": "12+15="}]
MODEL = "tiny"


@pytest.fixture(scope="module")
def client(server_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", timeout=300, max_retries=0)


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_a_chat_is_answered_as_the_engine_answers(client: openai.OpenAI, generator: Generator) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=SUM,  # type: ignore[arg-type]
        max_tokens=16,
        temperature=0,
        logprobs=True,
    )
    (choice,) = answer.choices
    prompt = generator.tokenizer.apply_chat_template(SUM, add_generation_prompt=True, return_dict=False)
    ((own,),) = generator.engine.generate([list(prompt)], SamplingParams(max_tokens=16, temperature=0.0))
    assert choice.message.content == generator.tokenizer.decode(own.token_ids, skip_special_tokens=True) == "27"
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert [entry.logprob for entry in choice.logprobs.content] == pytest.approx(own.raw_log_probs, abs=1e-6)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), len(own.token_ids))


def test_a_streamed_chat_is_the_whole_one_in_pieces(
    client: openai.OpenAI, generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is held three times until another piece has come, so that it cannot be faster than the stream."""
    settings = {"model": MODEL, "messages": SUM, "max_tokens": 200, "seed": 5, "extra_body": {"ignore_eos": True}}
    whole = client.chat.completions.create(**settings)  # type: ignore[call-overload]
    pieces: list[Any] = []
    steps, advance = 0, generator.engine._advance

    def held(arrivals: list[list[Request]], aborts: list[Request]) -> list[Request]:
        nonlocal steps
        steps += 1
        deadline = time.monotonic() + 600
        while steps in (50, 100, 150) and len(pieces) < 1 + steps // 50:  # the first one only says who speaks
            assert time.monotonic() < deadline, "nothing comes while the engine writes"
            time.sleep(0.01)
        return advance(arrivals, aborts)

    monkeypatch.setattr(generator.engine, "_advance", held)
    stream = client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True})  # type: ignore[call-overload]
    for piece in stream:
        pieces.append(piece)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content
    assert len([piece for piece in pieces if piece.choices]) > 3, "it came in pieces"
    assert pieces[0].choices[0].delta.role == "assistant"
    assert [piece.choices[0].finish_reason for piece in pieces if piece.choices][-1] == "length"
    assert pieces[-1].usage.completion_tokens == 200


def test_several_prompts_and_samples_are_answered_in_order(client: openai.OpenAI, generator: Generator) -> None:
    answer = client.completions.create(model=MODEL, prompt=["1+1=", "2+2="], n=2, max_tokens=4, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == ["2", "2", "4", "4"]
    ids = generator.tokenizer.encode("1+1=")
    assert client.completions.create(model=MODEL, prompt=ids, max_tokens=4, temperature=0).choices[0].text == "2"


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    settings = {"model": MODEL, "messages": SUM, "max_tokens": 8, "temperature": 0, "stop": ["7"]}
    whole = client.chat.completions.create(**settings)  # type: ignore[call-overload]
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("2", "stop")
    pieces = client.chat.completions.create(**settings, stream=True)  # type: ignore[call-overload]
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "2"


def test_wrong_requests_are_the_clients_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="this server has 'tiny'"):
        client.completions.create(model="gpt-5", prompt="x")
    with pytest.raises(openai.BadRequestError, match="frequency_penalty is not supported"):
        client.completions.create(model=MODEL, prompt="x", frequency_penalty=1.0)
    with pytest.raises(openai.BadRequestError, match="2048 positions"):
        client.completions.create(model=MODEL, prompt="x", max_tokens=5000)
    with pytest.raises(openai.BadRequestError, match="top_p is 3"):
        client.completions.create(model=MODEL, prompt="x", top_p=3.0)


def test_an_asker_that_leaves_takes_the_request_along(
    client: openai.OpenAI, generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Request] = []
    abort = generator.engine.abort
    monkeypatch.setattr(generator.engine, "abort", lambda request: (left.append(request), abort(request)))
    stream = client.completions.create(
        model=MODEL, prompt="x", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    before = client.completions.create(model=MODEL, prompt="1+1=", max_tokens=2, temperature=0)
    assert before.choices[0].text == "2"
    deadline = time.monotonic() + 300
    while not (left and left[0].done):
        assert time.monotonic() < deadline, "nobody sees that the asker is gone"
        time.sleep(0.01)
    assert left[0].result().stop_reason is StopReason.ABORTED
    assert all(request is None for request in generator.engine.scheduler.slots.requests)


def test_a_key_is_asked_for_and_a_foreign_host_refused(generator: Generator) -> None:
    keyed = TestClient(make_app(generator, "m", key="secret"), base_url="http://10.0.0.1")
    assert keyed.get("/v1/models").status_code == 401
    assert keyed.get("/v1/models", headers={"Authorization": "Bearer secret"}).status_code == 200
    local = TestClient(make_app(generator, "m"), base_url="http://127.0.0.1:8000")
    assert local.get("/v1/models").status_code == 200
    assert local.get("/v1/models", headers={"Host": "evil.example"}).status_code == 421
    assert local.post("/update_weights_from_disk", json={}).status_code == 404, "only where asked for"
