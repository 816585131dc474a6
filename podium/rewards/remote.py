"""A reward behind HTTP: POST the responses, read back scores.

Request: `{"rows": [{data_source, prompt, response, ground_truth, extra_info}, ...]}`. Answer: `{"scores": [...]}`, each
a number, an object with a `score`, or null for no score. Refused and failing requests (429, 5xx, connection) are tried
again with growing pauses; the rate limit holds per reward process. It keeps no connection open.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from podium.errors import RewardError


def is_address(reference: str) -> bool:
    return reference.startswith(("http://", "https://"))


class RateLimit:
    """Lets a caller pass at most `per_second` times a second; 0: no limit."""

    def __init__(self, per_second: float, sleep: Callable[[float], None] = time.sleep) -> None:
        self._gap = 1.0 / per_second if per_second > 0 else 0.0
        self._next = 0.0
        self._lock = threading.Lock()
        self._sleep = sleep

    def wait(self) -> None:
        with self._lock:
            now = time.monotonic()
            pause = max(0.0, self._next - now)
            self._next = max(self._next, now) + self._gap
        if pause:
            self._sleep(pause)


class RemoteReward:
    def __init__(self, address: str, timeout_s: float = 30.0, retries: int = 3, max_per_second: float = 0.0) -> None:
        self.address, self.timeout_s, self.retries = address, timeout_s, retries
        self._limit = RateLimit(max_per_second)

    def score(
        self,
        data_sources: list[str],
        solution_strs: list[str],
        ground_truths: list[Any],
        extra_infos: list[Any],
    ) -> list[Any]:
        """Scores for many responses in one request."""
        names = ("data_source", "response", "ground_truth", "extra_info")
        values = zip(data_sources, solution_strs, ground_truths, extra_infos, strict=True)
        answer = self._post({"rows": [dict(zip(names, row, strict=True)) for row in values]})
        scores = answer.get("scores") if isinstance(answer, dict) else None
        if not isinstance(scores, list) or len(scores) != len(solution_strs):
            raise RewardError(f"{self.address} answered without a list of {len(solution_strs)} 'scores'")
        return scores

    def _post(self, content: dict[str, Any]) -> Any:
        """Tries share the time limit of one call, so that the last answer still counts."""
        body = json.dumps(content, default=str).encode()
        deadline = time.monotonic() + self.timeout_s * 0.9
        problem = "no attempt was made"
        for attempt in range(self.retries + 1):
            self._limit.wait()
            left = deadline - time.monotonic()
            if left <= 0:
                break
            request = urllib.request.Request(self.address, body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=left) as response:
                    return json.loads(response.read())
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}: {error.read()[:200].decode(errors='replace')}"
                if error.code < 500 and error.code != 429:
                    break  # the request itself is at fault
            except (OSError, ValueError) as error:  # no connection, too slow, not JSON
                problem = f"{type(error).__name__}: {error}"
            time.sleep(min(0.1 * 2**attempt, max(0.0, deadline - time.monotonic())))
        raise RewardError(f"{self.address} gave no scores: {problem}")
