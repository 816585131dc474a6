"""Answers in OpenAI's shapes, whole and in pieces."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from podium.engines.rollout.base import Completion, StopReason

FINISH = {StopReason.EOS: "stop", StopReason.STOP: "stop", StopReason.LENGTH: "length", StopReason.ABORTED: "abort"}


class Shape:
    """One answer's name, time and kind."""

    def __init__(self, model: str, is_chat: bool, tokenizer: Any) -> None:
        self.model, self.is_chat, self.tokenizer = model, is_chat, tokenizer
        self.id = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.created = int(time.time())

    def frame(self, choices: list[dict[str, Any]], in_pieces: bool = False, **more: Any) -> dict[str, Any]:
        kind = "chat.completion" if self.is_chat else "text_completion"
        name = f"{kind}.chunk" if in_pieces and self.is_chat else kind
        return {"id": self.id, "object": name, "created": self.created, "model": self.model, "choices": choices} | more

    def choice(self, index: int, text: str, done: Completion, with_log_probs: bool) -> dict[str, Any]:
        """One whole response."""
        content = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        log_probs = self.log_probs(done.token_ids, done.raw_log_probs) if with_log_probs else None
        return {"index": index, **content, "logprobs": log_probs, "finish_reason": FINISH[done.stop_reason]}

    def piece(self, index: int, text: str, log_probs: Any, done: Completion | None) -> dict[str, Any]:
        """What was added to a response."""
        content: dict[str, Any] = {"delta": {"content": text}} if self.is_chat else {"text": text}
        reason = FINISH[done.stop_reason] if done is not None else None
        return {"index": index, **content, "logprobs": log_probs, "finish_reason": reason}

    def opening(self, index: int) -> dict[str, Any]:
        """The first piece of a chat answer says who speaks."""
        return {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }

    def log_probs(self, token_ids: list[int], log_probs: list[float]) -> dict[str, Any]:
        texts = [str(self.tokenizer.decode([token])) for token in token_ids]
        if self.is_chat:
            entries = [
                {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
                for text, value in zip(texts, log_probs, strict=True)
            ]
            return {"content": entries}
        offsets = [sum(map(len, texts[:place])) for place in range(len(texts))]
        return {"tokens": texts, "token_logprobs": log_probs, "top_logprobs": None, "text_offset": offsets}


def usage(num_prompt: int, num_written: int) -> dict[str, int]:
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_written,
        "total_tokens": num_prompt + num_written,
    }


def event(content: Any) -> str:
    """One server-sent event."""
    return f"data: {content if isinstance(content, str) else json.dumps(content)}\n\n"
