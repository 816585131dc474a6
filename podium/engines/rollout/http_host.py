"""A running server with SGLang's HTTP interface, in the place of a process of our own (rollout/process.py).

Requests are `POST /generate`, one connection per request under way. A publish is a model folder in `weights_dir`, which
the server must see too, and `POST /update_weights_from_disk`. Every answer's status is looked at. `podium serve` speaks
this language as well. The server is somebody else's: it is never started or ended here, only waited for.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import tempfile
import threading
import time
import urllib.parse
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from podium.engines.rollout.base import SamplingParams, StopReason
from podium.engines.rollout.buckets import Bucket
from podium.engines.rollout.host.records import Ask, Done, HostSettings, Received, WeightFile
from podium.engines.rollout.process import HostDied
from podium.engines.rollout.remote import digest
from podium.engines.rollout.stopping import StopRules
from podium.engines.rollout.weights import sample_values
from podium.errors import ConfigError, RolloutError
from podium.stop_points import stop_point

MAX_CONNECTIONS = 256
HEALTH_LIMIT_S = 10.0
HEALTH_EVERY_S = 5.0
LOOK_S = 1.0


class HttpHost:
    """Orders as a process of our own would take them, carried out by calls to a server."""

    pid = 0

    def __init__(
        self,
        settings: HostSettings,
        url: str,
        weights_dir: str,
        tokenizer: PreTrainedTokenizerBase,
        start_limit_s: float,
        silence_limit_s: float,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"rollout.url={url} is not a server's address; give one like http://127.0.0.1:30000")
        self.name, self.settings, self.url, self.silence_limit_s = f"server at {url}", settings, url, silence_limit_s
        self._address = (parts.hostname, parts.port or 80)
        self._rules = StopRules(settings.vocab_size, settings.eos_token_ids, tokenizer)
        self.news = threading.Condition()
        self.inbox: deque[tuple[Any, ...]] = deque()
        self._lost: str | None = None
        self._rids: dict[int, str] = {}
        self._prefix = f"podium-{time.monotonic_ns()}"
        self._pool = ThreadPoolExecutor(min(MAX_CONNECTIONS, settings.max_num_seqs), thread_name_prefix="sglang-http")
        self._version = 0
        self._connections: set[http.client.HTTPConnection] = set()
        self._asked = self._heard = time.monotonic()
        self._wait_until_ready(start_limit_s)
        info = self._post("GET", "/get_model_info", None, HEALTH_LIMIT_S)
        limit = info.get("max_total_num_tokens") or info.get("max_model_len") or info.get("context_length")
        self._own_folder = None if weights_dir else tempfile.mkdtemp(prefix="podium-publish-")
        self.weights_dir = Path(weights_dir or self._own_folder or "")
        self.facts: dict[str, Any] = {"version": str(info.get("version", "")), "max_model_len": int(limit or 1 << 30)}

    def _wait_until_ready(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while True:
            try:
                self._post("GET", "/health", None, HEALTH_LIMIT_S)
                return
            except HostDied as error:
                if time.monotonic() >= deadline:
                    raise RolloutError(
                        f"no server answers at rollout.url={self.url} ({error}); start it first"
                    ) from error
                stop_point()
                time.sleep(min(LOOK_S, limit_s))

    # ---- orders

    def send(self, kind: str, content: Any) -> None:
        if kind == "submit":
            for ask in content:
                self._rids[ask.id] = f"{self._prefix}-{ask.id}"
                self._pool.submit(self._generate, ask)
        else:
            for number in content:
                if number in self._rids:
                    self._post("POST", "/abort_request", {"rid": self._rids[number]}, self.silence_limit_s)

    def call(self, method: str, *arguments: Any, limit_s: float) -> Any:
        if method == "load":
            files, version = arguments
            return self._load(files, version, limit_s)
        if method == "probe":
            return self._probe(arguments[0], limit_s)
        paths = {"pause": "/pause_generation", "resume": "/continue_generation"}
        paths |= {"sleep": "/release_memory_occupation", "wake": "/resume_memory_occupation"}
        self._post("POST", paths[method], {"mode": "retract"} if method == "pause" else {}, limit_s)
        return None

    def check(self) -> None:
        """Raise HostDied when a request was lost, or the server gives no sign of life for too long."""
        if self._lost is not None:
            raise HostDied(self._lost)
        if time.monotonic() - self._asked < HEALTH_EVERY_S:
            return
        self._asked = time.monotonic()
        try:
            self._post("GET", "/health", None, HEALTH_LIMIT_S)
            self._heard = time.monotonic()
        except (HostDied, RolloutError) as error:
            silent_s = time.monotonic() - self._heard
            if silent_s > self.silence_limit_s:
                raise HostDied(f"it has not answered for {silent_s:.0f} s ({error})") from error

    def log_tail(self) -> str:
        return ""

    def close(self, grace_s: float = 0.0) -> None:
        """Leave the server alone; whoever waits for an answer of it waits no longer."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for connection in list(self._connections):
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    # ---- requests

    def _generate(self, ask: Ask) -> None:
        """In a thread of the pool."""
        body = {
            "input_ids": ask.prompt,
            "sampling_params": _sampling(ask),
            "return_logprob": True,
            "rid": self._rids[ask.id],
        }
        version = self._version
        try:
            message: tuple[Any, ...] = ("done", self._done(ask, self._post("POST", "/generate", body, None), version))
        except HostDied as error:
            self._lost = str(error)
            message = ()
        except RolloutError as error:
            message = ("failed", ask.id, str(error))
        self._rids.pop(ask.id, None)
        with self.news:
            if message:
                self.inbox.append(message)
            self.news.notify_all()

    def _done(self, ask: Ask, answer: Any, version: int) -> Done:
        meta, params = answer["meta_info"], ask.params
        entries = meta["output_token_logprobs"]
        tokens, log_probs = [int(entry[1]) for entry in entries], [float(entry[0]) for entry in entries]
        reason = _reason(self.settings, params, meta["finish_reason"])
        if end := self._end(params, tokens):
            tokens, log_probs, reason = tokens[:end], log_probs[:end], StopReason.STOP
        raw = log_probs if params.temperature in (0, 1) else [float("nan")] * len(tokens)
        drawn = [0.0] * len(tokens) if params.temperature == 0 else log_probs
        return Done(ask.id, tokens, drawn, raw, str(reason), version)

    def _end(self, params: SamplingParams, tokens: list[int]) -> int:
        """The length up to the token that completes a stop string; 0: none does."""
        return self._rules.end_of(params, tokens) if params.stop else 0

    def _probe(self, tokens: list[int], limit_s: float) -> list[float]:
        body = {
            "input_ids": tokens,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        answer = self._post("POST", "/generate", body, limit_s)
        return [float(entry[0]) for entry in answer["meta_info"]["input_token_logprobs"][1:]]

    # ---- weights

    def _load(self, files: list[WeightFile], version: int, limit_s: float) -> list[Received]:
        folder = self.weights_dir / f"version-{version}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for path in Path(self.settings.model).iterdir():
            if path.is_file() and path.suffix != ".safetensors" and not path.name.endswith(".index.json"):
                shutil.copy(path, folder)
        tensors = {name: tensor for file in files for name, tensor in _tensors(file)}
        save_file(_untied(tensors), folder / "model.safetensors", {"format": "pt"})
        body = {"model_path": str(folder), "flush_cache": True, "weight_version": str(version)}
        answer = self._post("POST", "/update_weights_from_disk", body, limit_s)
        if not answer.get("success"):
            raise RolloutError(f"the {self.name} refused the weights of version {version}: {answer.get('message')}")
        for old in self.weights_dir.glob("version-*"):
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)
        self._version = version
        return [_written(folder, tensors, version)]

    # ---- HTTP

    def _post(self, method: str, path: str, body: Any, limit_s: float | None) -> Any:
        """One exchange. A server that cannot be reached is a HostDied, an answer that says no a RolloutError."""
        connection = http.client.HTTPConnection(*self._address, timeout=limit_s)
        self._connections.add(connection)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise HostDied(f"{method} {path}: {type(error).__name__}: {error}") from error
        finally:
            self._connections.discard(connection)
            connection.close()
        if answer.status != 200:
            said = content[:500].decode(errors="replace")
            raise RolloutError(f"the {self.name} answered {method} {path} with {answer.status}: {said}")
        try:
            return json.loads(content) if content else {}
        except ValueError:
            return {}


def _sampling(ask: Ask) -> dict[str, Any]:
    params = ask.params
    return {
        "max_new_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "stop": list(params.stop),
        "no_stop_trim": True,
        "stop_token_ids": list(params.stop_token_ids),
        "ignore_eos": params.ignore_eos,
        "sampling_seed": ask.seed % (1 << 31),
    }


def _reason(settings: HostSettings, params: SamplingParams, finish: Any) -> StopReason:
    kind = (finish or {}).get("type")
    if kind in ("length", "abort"):
        return StopReason.LENGTH if kind == "length" else StopReason.ABORTED
    is_eos = not params.ignore_eos and finish.get("matched") in settings.eos_token_ids
    return StopReason.EOS if is_eos else StopReason.STOP


def _tensors(file: WeightFile) -> list[tuple[str, Tensor]]:
    data = torch.from_file(file.path, shared=False, size=file.num_bytes, dtype=torch.uint8)
    return list(Bucket(file.entries, data).tensors())


def _untied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies: a file may not hold one storage twice."""
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


def _written(folder: Path, tensors: dict[str, Tensor], version: int) -> Received:
    """What the server can have read, from the file itself."""
    with safe_open(str(folder / "model.safetensors"), framework="pt") as file:
        return {name: digest(sample_values(file.get_tensor(name), version)) for name in tensors}
