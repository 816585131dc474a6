"""The reward on ten rows: does it answer, in time, with numbers, and does it tell a right answer from nonsense?

It runs where a run's rewards run, in a process with a time limit, so a function that hangs is found out too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from podium.checks.findings import Finding, Findings, note, ok, problem
from podium.config.schema import Config
from podium.data.dataset import RLHFDataset
from podium.errors import PodiumError
from podium.protocol import DataProto
from podium.rewards.manager import make_rows
from podium.rewards.records import Outcome, RewardRow
from podium.rewards.registry import check_sources, function_of, make_spec
from podium.rewards.scorer import RewardScorer

ROWS = 10
PATIENCE_S = 10.0
NONSENSE = "qwertz 12345 ."

PlaceOf = Callable[[str], str | None]
"""File and line of the row with an id."""


def check_reward(config: Config, dataset: RLHFDataset) -> Findings:
    step = max(1, len(dataset) // ROWS)
    fetched = dataset.fetch(list(range(0, len(dataset), step))[:ROWS])
    sources = {str(row["data_source"]) for row in fetched}
    try:
        without_rule = check_sources(config.reward, sources, config.reward_model.enable)
    except PodiumError as error:
        yield problem("reward", str(error), "name a function that exists: path/to/file.py:function")
        return
    except Exception as error:  # noqa: BLE001  the user's file may raise anything when it is imported
        yield problem("reward", f"the reward's file cannot be imported: {type(error).__name__}: {error}", "repair it")
        return
    if config.reward_model.enable and (config.reward_model.rule_weight == 0 or without_rule == sources):
        yield ok("reward", "a reward model scores the responses; no function is asked in training")
        return
    rows = [row for row in _rows(fetched) if row.data_source not in without_rule]
    yield from _try_function(config, rows, dataset.place_of)


def _rows(fetched: Sequence[dict[str, Any]]) -> list[RewardRow]:
    from podium.data.dataset import collate_fn

    batch = DataProto.from_single_dict(collate_fn(fetched))
    return make_rows(batch, ["" for _ in fetched])


def _try_function(config: Config, rows: list[RewardRow], place_of: PlaceOf) -> Findings:
    limit = min(config.reward.timeout_s, PATIENCE_S)
    scorer = RewardScorer(replace(config.reward, timeout_s=limit, num_processes=max(1, config.reward.num_processes)))
    name = " + ".join(make_spec(config.reward).functions)
    kinds = (lambda row: _right_answers(row)[0], lambda row: _right_answers(row)[1], lambda row: NONSENSE)
    scores: list[list[float]] = []
    seconds = 0.0
    try:
        for write in kinds:
            start = time.perf_counter()  # of the last kind: the reward processes are up by then
            outcomes = _answers(scorer, [replace(row, response=write(row)) for row in rows])
            seconds = (time.perf_counter() - start) / max(1, len(rows))
            if any(outcome.status != "ok" for outcome in outcomes):
                yield _failure(name, rows, outcomes, place_of)
                return
            scores.append([outcome.values["score"] for outcome in outcomes])
    finally:
        scorer.close()
    plain, marked, wrong = scores
    yield from _compare(name, rows, [max(pair) for pair in zip(plain, marked, strict=True)], wrong, seconds)


def _failure(name: str, rows: list[RewardRow], outcomes: list[Outcome], place_of: PlaceOf) -> Finding:
    failed = [(row, outcome) for row, outcome in zip(rows, outcomes, strict=True) if outcome.status != "ok"]
    row, outcome = failed[0]
    place = f"{place_of(row.uid)} ({row.data_source})"
    fix = "make it return in time" if outcome.status == "timeout" else "make it return a finite number for every row"
    return problem(
        "reward",
        f"{name} failed on {len(failed)} of {len(rows)} rows; {place}: {outcome.reason}",
        f"{fix}; extra_info has the row's own columns, ground_truth its answer",
    )


def _compare(name: str, rows: list[RewardRow], right: list[float], wrong: list[float], seconds: float) -> Findings:
    shown = f"{name} on {len(rows)} rows: the data's own answer {_mean(right):g}, nonsense {_mean(wrong):g}"
    if len(set(right + wrong)) == 1:
        fix = "look at what it does with solution_str; train only when right and wrong answers differ"
        said = f"{shown}: it gives {right[0]:g} to everything, so nothing can be learned"
        # Without answers in the rows a judge may well find both responses equally bad.
        has_answers = all(row.ground_truth is not None for row in rows)
        yield problem("reward", said, fix) if has_answers else note("reward", said, fix)
    elif _mean(right) <= _mean(wrong) and all(function_of(row.data_source) is None for row in rows):
        fix = "if the score does not depend on ground_truth this is fine; else compare it with solution_str"
        yield note("reward", f"{shown}: a right answer is not worth more than nonsense", fix)
    else:
        yield ok("reward", f"{shown}; {seconds * 1000:.1f} ms each")


def _answers(scorer: RewardScorer, rows: list[RewardRow]) -> list[Outcome]:
    return [future.result() for future in scorer.submit(rows)]


def _right_answers(row: RewardRow) -> tuple[str, str]:
    """Responses one of which should score well: the answer alone, and in the marks that rules look for."""
    truth = row.ground_truth
    if isinstance(truth, dict):
        target = truth.get("target", next(iter(truth.values()), ""))
        truth = target[0] if isinstance(target, list | tuple) and target else target
    answer = "" if truth is None else str(truth)
    return answer, f"<think>so</think> <answer> {answer} </answer> #### {answer}\n\\boxed{{{answer}}}"


def _mean(values: list[float]) -> float:
    return round(sum(values) / max(1, len(values)), 4)
