"""SGLang's routes: `/generate`, and what a trainer needs to publish weights to this server.

The publishing routes change what everybody gets, so they exist only where they were asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from torch import Tensor

from podium import __version__
from podium.engines.rollout.base import Completion, StopReason
from podium.engines.rollout.request import Request
from podium.errors import PodiumError
from podium.serving.answers import event
from podium.serving.generation import Generator
from podium.serving.openai_routes import read_body
from podium.serving.parameters import Asked, BadRequest, read_sglang
from podium.serving.text import TextStream


class SGLangRoutes:
    def __init__(self, generator: Generator, model_path: str, allow_updates: bool) -> None:
        self.generator, self.model_path, self.allow_updates = generator, model_path, allow_updates

    def routes(self) -> list[Route]:
        routes = [
            Route("/health", self.health),
            Route("/get_model_info", self.model_info),
            Route("/model_info", self.model_info),
            Route("/generate", self.generate, methods=["POST"]),
            Route("/abort_request", self.abort, methods=["POST"]),
        ]
        if self.allow_updates:
            routes += [
                Route("/update_weights_from_disk", self.update, methods=["POST"]),
                Route("/pause_generation", self.pause, methods=["POST"]),
                Route("/continue_generation", self.resume, methods=["POST"]),
                Route("/flush_cache", self.health, methods=["GET", "POST"]),  # a publish drops what was computed
            ]
        return routes

    async def health(self, _: HttpRequest) -> Response:
        return JSONResponse({"status": "ok"})

    async def model_info(self, _: HttpRequest) -> Response:
        engine = self.generator.engine
        info = {"model_path": self.model_path, "is_generation": True, "weight_version": str(engine.version)}
        return JSONResponse(info | {"context_length": engine.max_model_len, "version": f"podium {__version__}"})

    async def generate(self, request: HttpRequest) -> Response:
        body = await read_body(request)
        asked = read_sglang(body)
        prompts = self._prompts(body)
        is_batch = isinstance(body.get("text"), list) or isinstance((body.get("input_ids") or [0])[0], list)
        requests: list[Request] = []
        for place, prompt in enumerate(prompts):
            seed = self.generator.next_seed() if asked.seed is None else int(asked.seed) + place
            requests += self.generator.submit(prompt, asked.params, asked.n, seed)
        if asked.stream:
            if len(requests) != 1:
                raise BadRequest("stream=true takes one prompt and n=1")
            return StreamingResponse(self._stream(requests[0], asked), media_type="text/event-stream")
        name = body.get("rid")
        if isinstance(name, str):
            self.generator.running[name] = requests
        try:
            done = await self.generator.all(requests)
        finally:
            self.generator.running.pop(str(name), None)
        scored = await self._scores(prompts, body, asked)
        answers = [
            self._answer(one, asked, len(prompts[place // asked.n]), scored[place // asked.n])
            for place, one in enumerate(done)
        ]
        return JSONResponse(answers if is_batch or asked.n > 1 else answers[0])

    def _prompts(self, body: dict[str, Any]) -> list[list[int]]:
        ids, text = body.get("input_ids"), body.get("text")
        if isinstance(ids, list) and ids:
            return ids if isinstance(ids[0], list) else [ids]
        if text:
            return [list(self.generator.tokenizer.encode(one)) for one in ([text] if isinstance(text, str) else text)]
        raise BadRequest("give text or input_ids")

    async def _scores(self, prompts: list[list[int]], body: dict[str, Any], asked: Asked) -> list[Any]:
        """Log-probs of the prompts themselves, where they were asked for from the first token on."""
        if not asked.log_probs or body.get("logprob_start_len") != 0:
            return [None] * len(prompts)
        engine, loop = self.generator.engine, asyncio.get_running_loop()

        def score() -> list[Any]:
            with engine._lock, engine._generating():
                return [engine.runner.model.log_probs(prompt).float().tolist() for prompt in prompts]

        values = await loop.run_in_executor(None, score)
        return [
            [(value, token, None) for value, token in zip([None, *scores], prompt, strict=True)]
            for scores, prompt in zip(values, prompts, strict=True)
        ]

    def _answer(self, done: Completion, asked: Asked, num_prompt: int, scored: Any) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "finish_reason": finish_reason(done),
            "prompt_tokens": num_prompt,
            "completion_tokens": len(done.token_ids),
            "weight_version": str(done.version),
        }
        if asked.log_probs:
            values = done.raw_log_probs if asked.params.temperature == 0 else done.log_probs
            pairs = zip(values, done.token_ids, strict=True)
            meta["output_token_logprobs"] = [(value, token, None) for value, token in pairs]
            if scored is not None:
                meta["input_token_logprobs"] = scored
        text = TextStream(self.generator.tokenizer, asked.params.stop).whole(done.token_ids)
        return {"text": text, "output_ids": done.token_ids, "meta_info": meta}

    async def _stream(self, request: Request, asked: Asked) -> AsyncIterator[str]:
        """Each event has the whole text so far, as SGLang's do."""
        stream, text = TextStream(self.generator.tokenizer, asked.params.stop), ""
        async for growth in self.generator.watch(request):
            text += stream.more(growth.token_ids, ended=growth.completion is not None)
            meta = {"finish_reason": None if growth.completion is None else finish_reason(growth.completion)}
            yield event({"text": text, "output_ids": growth.token_ids, "meta_info": meta})
        yield event("[DONE]")

    async def abort(self, request: HttpRequest) -> Response:
        body = await read_body(request)
        for one in self.generator.running.get(str(body.get("rid")), []):
            self.generator.engine.abort(one)
        return JSONResponse({"success": True})

    # ---- publishing

    async def update(self, request: HttpRequest) -> Response:
        """Load another model folder's weights; they must be of the same model."""
        body = await read_body(request)
        folder, engine = Path(str(body.get("model_path", ""))), self.generator.engine
        given = str(body.get("weight_version") or "")
        version = int(given) if given.isdigit() else engine.version + 1
        if not any(folder.glob("*.safetensors")):
            return JSONResponse({"success": False, "message": f"{folder} has no safetensors files"}, 400)
        try:
            await asyncio.get_running_loop().run_in_executor(None, engine.load_weights, _read(folder), version)
        except PodiumError as error:
            return JSONResponse({"success": False, "message": str(error)}, 400)
        return JSONResponse({"success": True, "message": f"version {version}"})

    async def pause(self, _: HttpRequest) -> Response:
        self.generator.engine.pause()
        return JSONResponse({"success": True})

    async def resume(self, _: HttpRequest) -> Response:
        self.generator.engine.resume()
        return JSONResponse({"success": True})


def finish_reason(done: Completion) -> dict[str, Any]:
    if done.stop_reason in (StopReason.EOS, StopReason.STOP):
        return {"type": "stop", "matched": done.token_ids[-1] if done.token_ids else None}
    return {"type": "length" if done.stop_reason is StopReason.LENGTH else "abort"}


def _read(folder: Path) -> Iterator[tuple[str, Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  not a mapping
                yield name, file.get_tensor(name)
