"""RewardManager: scores a batch of responses with a function of the text.

A response whose score cannot be had (the function raised, hung, or returned what is no number) is *unscored*: it is
never 0, it is counted, and the trainer drops it from its group. When too many fail the run stops and says which
function and which row. `submit` starts the scoring and `collect` waits for it; responses that a rollout worker scored
while it was still generating, or that an environment scored, come with their outcome and are not scored again. It does
not know how scores become advantages.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from podium.errors import RewardError
from podium.protocol import DataProto, object_array
from podium.rewards.records import Outcome, RewardRow
from podium.rewards.scorer import InlineScorer
from podium.stop_points import result_of

logger = logging.getLogger(__name__)

OUTCOME = "reward_outcome"
"""The column of outcomes that a rollout worker adds."""
MAX_NAMED = 3
"""Different failures that the log names, each step."""
SAID_AGAIN = 10
"""A failure is named again when it has come this many times as often as it had when it was last named."""

VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|\d+(\.\d+)?")


class Scorer(Protocol):
    def submit(self, rows: Sequence[RewardRow]) -> list[Future[Outcome]]: ...

    def uses_processes(self, data_sources: Iterable[str]) -> bool: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class RewardResult:
    scores: Tensor  # [B], NaN = unscored
    without_rule: Tensor  # [B] bool: rows that no function was asked about
    texts: list[str]
    extra: dict[str, np.ndarray[Any, Any]]
    metrics: dict[str, float]


@dataclass(frozen=True)
class PendingRewards:
    rows: list[RewardRow]
    futures: list[Future[Outcome]]
    without_rule: list[bool]


class RewardManager:
    def __init__(
        self,
        tokenizer: Any,
        score_fn: Callable[..., Any] | Scorer,
        max_failure_rate: float = 0.5,
        data_sources: Iterable[str] = (),
        model_sources: Iterable[str] = (),
        reward_model: bool = False,
    ) -> None:
        """`score_fn`: a scorer, or a plain function, which is then called in this process without a time limit.

        With a `reward_model` some rows need no function: those of style `model`, and those of `model_sources`.
        """
        self.scorer: Scorer = score_fn if hasattr(score_fn, "submit") else InlineScorer(score_fn)  # type: ignore[assignment]
        self.tokenizer, self.max_failure_rate = tokenizer, max_failure_rate
        self.reward_model, self.model_sources = reward_model, frozenset(model_sources)
        self.streams = self.scorer.uses_processes(data_sources)
        """Whether rollout workers should score responses while they generate."""
        self.datasets: list[Any] = []
        """Where the rows come from; a dataset with `place_of(uid)` tells the file and line of one that failed."""
        self._failures = RepeatedFailures()

    def __call__(self, batch: DataProto) -> RewardResult:
        return self.collect(self.submit(batch))

    def submit(self, batch: DataProto) -> PendingRewards:
        """Start scoring a batch."""
        rows = make_rows(batch, response_texts(batch, self.tokenizer), written_texts(batch, self.tokenizer))
        without = self._without_rule(batch, rows)
        outcomes: list[Outcome | None] = list(batch.non_tensor_batch.get(OUTCOME, [None] * len(rows)))
        outcomes = [Outcome("ok") if skip else known for skip, known in zip(without, outcomes, strict=True)]
        asked = iter(self.scorer.submit([row for row, known in zip(rows, outcomes, strict=True) if known is None]))
        return PendingRewards(rows, [next(asked) if known is None else _done(known) for known in outcomes], without)

    def _without_rule(self, batch: DataProto, rows: Sequence[RewardRow]) -> list[bool]:
        if not self.reward_model:
            return [False] * len(rows)
        styles = [column.get("style") for column in batch.non_tensor_batch["reward_model"]]
        return [s == "model" or row.data_source in self.model_sources for s, row in zip(styles, rows, strict=True)]

    def collect(self, pending: PendingRewards) -> RewardResult:
        """Wait for the scores; every row gets an outcome within the reward's own time limit."""
        outcomes = [result_of(future) for future in pending.futures]
        failures = [row for row, outcome in enumerate(outcomes) if outcome.status in ("error", "timeout")]
        for row, times in self._failures.worth_saying([(row, outcomes[row].reason) for row in failures]):
            logger.warning("reward failed%s on %s: %s", times, self.place(pending.rows[row]), outcomes[row].reason)
        if failures and len(failures) > self.max_failure_rate * len(outcomes):
            raise RewardError(
                f"{len(failures)} of {len(outcomes)} rewards of this step failed, more than reward.max_failure_rate="
                f"{self.max_failure_rate} allows; the first was on {self.place(pending.rows[failures[0]])}: "
                f"{outcomes[failures[0]].reason}"
            )
        scores = torch.tensor([o.values.get("score", float("nan")) for o in outcomes], dtype=torch.float32)
        names = sorted({key for outcome in outcomes for key in outcome.values} - {"score"})
        extra = {name: object_array([outcome.values.get(name) for outcome in outcomes]) for name in names}
        without_rule = torch.tensor(pending.without_rule, dtype=torch.bool)
        return RewardResult(
            scores, without_rule, [row.response for row in pending.rows], extra, _metrics(outcomes, extra)
        )

    def place(self, row: RewardRow) -> str:
        """A row as a person finds it: file and line where a dataset knows them, else the row's id."""
        known = (dataset.place_of(row.uid) for dataset in self.datasets if hasattr(dataset, "place_of"))
        place = next((place for place in known if place), f"row {row.uid}")
        return f"{place} ({row.data_source})"

    def close(self) -> None:
        self.scorer.close()


class RepeatedFailures:
    """Which failures to tell of: each kind once, and again when there have been many more of it."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()
        self._said: dict[str, int] = {}

    def worth_saying(self, failures: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """Of rows and reasons the first row of each kind that is due, with a word on how many there were."""
        kinds: dict[str, int] = {}
        for row, reason in failures:
            kinds.setdefault(kind_of(reason), row)
        before = set(self._said)
        self._count.update(kind_of(reason) for _, reason in failures)
        due = [kind for kind in kinds if self._count[kind] >= SAID_AGAIN * self._said.get(kind, 0)][:MAX_NAMED]
        self._said |= {kind: self._count[kind] for kind in due}
        return [(kinds[kind], _times(self._count[kind], kind in before)) for kind in due]


def kind_of(reason: str) -> str:
    """The reason without what differs from row to row: quoted texts and numbers."""
    return VARYING.sub("_", reason)


def _times(count: int, said_before: bool) -> str:
    if count == 1:
        return ""
    return f" {count} times so far, this time" if said_before else f" {count} times, first"


def _done(outcome: Outcome) -> Future[Outcome]:
    future: Future[Outcome] = Future()
    future.set_result(outcome)
    return future


def response_texts(batch: DataProto, tokenizer: Any) -> list[str]:
    tensors = batch.tensors()
    responses = tensors["responses"]
    lengths = tensors["attention_mask"][:, -responses.shape[1] :].sum(-1).tolist() if responses.shape[1] else []
    rows = zip(responses.tolist(), lengths or [0] * len(batch), strict=True)
    return [str(tokenizer.decode(ids[: int(n)], skip_special_tokens=True)) for ids, n in rows]


def written_texts(batch: DataProto, tokenizer: Any) -> list[str] | None:
    """What the model wrote itself; None where responses have nothing else in them."""
    if "info_mask" not in batch.tensors():
        return None
    responses, own = batch.tensors()["responses"], batch.tensors()["info_mask"].bool()
    rows = (ids[mask].tolist() for ids, mask in zip(responses, own, strict=True))
    return [str(tokenizer.decode(ids, skip_special_tokens=True)) for ids in rows]


def make_rows(batch: DataProto, texts: Sequence[str], written: Sequence[str] | None = None) -> list[RewardRow]:
    """The batch's columns beside each response; what the model wrote of it goes into `extra_info` as `written`."""
    columns = batch.non_tensor_batch
    nothing: list[Any] = [None] * len(batch)
    prompts, uids = columns.get("raw_prompt", nothing), columns.get("uid", range(len(batch)))
    plain = columns.get("is_conversation", nothing)
    return [
        RewardRow(
            data_source=str(columns["data_source"][row]),
            response=text,
            ground_truth=columns["ground_truth"][row],
            extra_info=_with_written(columns["extra_info"][row], None if written is None else written[row]),
            prompt=prompts[row][-1]["content"] if plain[row] is False else prompts[row],
            uid=str(uids[row]),
        )
        for row, text in enumerate(texts)
    ]


def _with_written(extra_info: Any, written: str | None) -> Any:
    if written is None or not (extra_info is None or isinstance(extra_info, Mapping)):
        return extra_info
    return {**(extra_info or {}), "written": written}


def _metrics(outcomes: Sequence[Outcome], extra: dict[str, np.ndarray[Any, Any]]) -> dict[str, float]:
    count = {status: sum(outcome.status == status for outcome in outcomes) for status in ("error", "timeout")}
    metrics = {
        "reward/unscored": float(count["error"] + count["timeout"]),
        "reward/error": float(count["error"]),
        "reward/timeout": float(count["timeout"]),
    }
    for name, values in extra.items():
        numbers = [float(value) for value in values if isinstance(value, bool | int | float)]
        if numbers:
            metrics[f"reward/{name}"] = sum(numbers) / len(numbers)
    return metrics
