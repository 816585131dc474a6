"""The data files of a run: can the rows be used, do the prompts fit, are there enough of them?"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from podium.agents.factory import environment_scores
from podium.checks.findings import Finding, Findings, note, ok, problem
from podium.config.schema import Config
from podium.data.agent_names import agent_loop
from podium.data.dataset import RLHFDataset
from podium.data.quarantine import BadRow, summarize
from podium.data.tasks import Split
from podium.errors import DataError, PodiumError
from podium.models.load import load_processor
from podium.rewards.answers import answer_rule

FIRST_ROWS, SPREAD_ROWS = 1_000, 256
NO_LIMIT = 1 << 30


def check_data(config: Config, tokenizer: Any) -> Findings:
    for split, files in (("train", config.data.train_files), ("val", config.data.val_files)):
        if files:
            yield from _check_split(config, tokenizer, "train" if split == "train" else "val", files)


def _check_split(config: Config, tokenizer: Any, split: Split, files: list[str]) -> Findings:
    key = f"data.{split}_files"
    whole = replace(config.data, max_prompt_length=NO_LIMIT, max_start_length=None, overlong_prompts="error")
    try:
        model = config.actor_rollout_ref.model
        dataset = RLHFDataset(files, tokenizer, whole, split, load_processor(model.path, model.trust_remote_code))
    except PodiumError as error:
        yield problem("data", f"{key}: {error}", f"correct {key}, or the file it names")
        return
    dataset.agent = agent_loop(config)
    try:
        told = [] if environment_scores(config) else dataset.expect_answers(answer_rule(config))
    except Exception:  # noqa: BLE001  (fault boundary: the check of the reward says what is wrong with it)
        told = []
    yield from (note("data", text) for text in told)
    try:
        lengths, bad = _look(dataset)
    except DataError as error:
        yield problem("data", str(error), f"correct {key}, or the settings it names")
        return
    looked = len(lengths) + len(bad)
    if len(bad) > config.data.max_bad_rows:
        fix = f"repair them, or set data.max_bad_rows={len(bad)} to leave such rows out"
        yield problem("data", f"{len(bad)} of {looked} rows looked at in {key} cannot be used: {summarize(bad)}", fix)
        return
    if bad:
        yield note("data", f"{len(bad)} of {looked} rows looked at in {key} will be left out: {summarize(bad)}")
    yield from _check_lengths(config, split, dataset, lengths)
    if split == "train":
        yield from _check_count(config, len(dataset) - len(bad))


def _look(dataset: RLHFDataset) -> tuple[dict[int, int], list[BadRow]]:
    """Prompt tokens by row, and the bad rows, of the first rows and of some from the whole file."""
    numbers = {*range(min(len(dataset), FIRST_ROWS)), *range(0, len(dataset), max(1, len(dataset) // SPREAD_ROWS))}
    lengths, bad = dict[int, int](), list[BadRow]()
    for number in sorted(numbers):
        try:
            lengths[number] = len(dataset[number]["input_ids"])
        except BadRow as error:
            bad.append(error)
    return lengths, bad


def _check_lengths(config: Config, split: str, dataset: RLHFDataset, lengths: dict[int, int]) -> Findings:
    limit = config.data.prompt_limit
    long = {row: length for row, length in lengths.items() if length > limit}
    if long and config.data.overlong_prompts == "error":
        row = max(long, key=lambda number: long[number])
        yield problem(
            "data",
            f"{len(long)} of {len(lengths)} {split} prompts looked at have more than data.max_prompt_length={limit} "
            f"tokens; {dataset.place_of(dataset.uid(row))} has {long[row]}",
            f"set data.max_prompt_length={long[row]}, or data.overlong_prompts=drop or truncate_left",
        )
    elif lengths:
        tokens = list(lengths.values())
        words = f"prompts have {min(tokens)} to {max(tokens)} tokens, in the middle {statistics.median(tokens):g}"
        yield ok("data", f"{split}: {len(dataset):,} rows; {words} (limit {limit})")


def _check_count(config: Config, rows: int) -> Findings:
    batch = config.data.train_batch_size
    if rows < batch:
        fix = f"set data.train_batch_size={rows} or lower, or give more rows"
        yield problem("data", f"{rows} training rows do not fill one batch of {batch} prompts", fix)
    elif config.trainer.total_training_steps is None and rows % batch and rows < 4 * batch:
        yield Finding(
            "data", "note", f"{rows % batch} of {rows} rows do not fill a batch and are left out of each epoch"
        )
