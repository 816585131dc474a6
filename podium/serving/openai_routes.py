"""OpenAI's routes: `/v1/models`, `/v1/completions` and `/v1/chat/completions`, whole or streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from podium.engines.rollout.request import Request
from podium.serving.answers import Shape, event, usage
from podium.serving.generation import Generator, Growth
from podium.serving.parameters import Asked, BadRequest, read_openai
from podium.serving.text import TextStream


class OpenAIRoutes:
    def __init__(self, generator: Generator) -> None:
        self.generator = generator

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self.models),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]

    async def models(self, _: HttpRequest) -> Response:
        name = self.generator.model_name
        limit = self.generator.engine.max_model_len
        one = {"id": name, "object": "model", "created": 0, "owned_by": "podium", "max_model_len": limit}
        return JSONResponse({"object": "list", "data": [one]})

    async def completions(self, request: HttpRequest) -> Response:
        body = await read_body(request)
        return await self._answer(body, self._prompts(body.get("prompt")), is_chat=False)

    async def chat(self, request: HttpRequest) -> Response:
        body = await read_body(request)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequest("messages must be a list of at least one message", "messages")
        try:
            prompt = self.generator.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except (ValueError, TypeError, KeyError) as error:
            raise BadRequest(f"the model's chat template refuses these messages: {error}", "messages") from error
        return await self._answer(body, [list(prompt)], is_chat=True)

    def _prompts(self, prompt: Any) -> list[list[int]]:
        """Text or token ids, one or several."""
        if isinstance(prompt, str):
            prompt = [prompt]
        if isinstance(prompt, list) and prompt and all(isinstance(item, int) for item in prompt):
            prompt = [prompt]
        if not isinstance(prompt, list) or not prompt:
            raise BadRequest("prompt must be a text, a list of texts, or token ids", "prompt")
        encode = self.generator.tokenizer.encode
        return [item if isinstance(item, list) else list(encode(str(item))) for item in prompt]

    async def _answer(self, body: dict[str, Any], prompts: list[list[int]], is_chat: bool) -> Response:
        generator = self.generator
        model = body.get("model") or generator.model_name
        if model != generator.model_name:
            raise BadRequest(f"the model {model!r} does not exist; this server has {generator.model_name!r}", "model")
        limit = generator.engine.max_model_len
        room = max(1, (limit or 1 << 20) - max(map(len, prompts)))
        asked = read_openai(body, room, is_chat)
        requests: list[Request] = []
        for place, prompt in enumerate(prompts):
            seed = generator.next_seed() if asked.seed is None else int(asked.seed) + place
            requests += generator.submit(prompt, asked.params, asked.n, seed)
        shape = Shape(model, is_chat, generator.tokenizer)
        if asked.stream:
            pieces = self._stream(requests, asked, shape, sum(map(len, prompts)))
            return StreamingResponse(pieces, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        done = await generator.all(requests)
        choices = [
            shape.choice(
                index, TextStream(generator.tokenizer, asked.params.stop).whole(one.token_ids), one, asked.log_probs
            )
            for index, one in enumerate(done)
        ]
        counts = usage(sum(map(len, prompts)), sum(len(one.token_ids) for one in done))
        return JSONResponse(shape.frame(choices, usage=counts))

    async def _stream(self, requests: list[Request], asked: Asked, shape: Shape, num_prompt: int) -> AsyncIterator[str]:
        """All responses' pieces as they come, interleaved. An asker that leaves ends the responses."""
        queue: asyncio.Queue[tuple[int, Growth]] = asyncio.Queue()

        async def follow(index: int, request: Request) -> None:
            async for growth in self.generator.watch(request):
                await queue.put((index, growth))

        tasks = [asyncio.ensure_future(follow(index, request)) for index, request in enumerate(requests)]
        streams = [TextStream(self.generator.tokenizer, asked.params.stop) for _ in requests]
        told, left, num_written = [0] * len(requests), len(requests), 0
        try:
            if shape.is_chat:
                yield event(shape.frame([shape.opening(index) for index in range(len(requests))], in_pieces=True))
            while left:
                index, growth = await _next(queue, tasks)
                done = growth.completion
                text = streams[index].more(growth.token_ids, ended=done is not None)
                if not text and done is None:
                    continue
                log_probs = None
                if asked.log_probs:
                    log_probs = shape.log_probs(growth.token_ids[told[index] :], growth.log_probs[told[index] :])
                    told[index] = len(growth.token_ids)
                yield event(shape.frame([shape.piece(index, text, log_probs, done)], in_pieces=True))
                left -= done is not None
                num_written += len(growth.token_ids) if done is not None else 0
            if asked.with_usage:
                yield event(shape.frame([], in_pieces=True, usage=usage(num_prompt, num_written)))
            yield event("[DONE]")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _next(queue: asyncio.Queue[tuple[int, Growth]], tasks: list[asyncio.Task[None]]) -> tuple[int, Growth]:
    """The next piece; raises what a response's task raised."""
    while True:
        try:
            return await asyncio.wait_for(queue.get(), 1.0)
        except TimeoutError:
            for task in tasks:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    task.result()


async def read_body(request: HttpRequest) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body
