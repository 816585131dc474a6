"""How a trainer and rollout workers of another pool meet: in a process group, or in the store where one cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from podium.config import load_config
from podium.engines.rollout.channels import Channel, GroupChannel, StoreChannel
from podium.workers import broadcast
from podium.workers.broadcast import Offer, join_channel, num_kept_versions

CPU = torch.device("cpu")


def meet_all(size: int) -> list[Channel]:
    offer = Offer("127.0.0.1")
    with ThreadPoolExecutor(size) as pool:
        ends = [pool.submit(offer.join, size, CPU, 300.0)]
        ends += [pool.submit(join_channel, offer.meeting, rank, size, CPU, 300.0) for rank in range(1, size)]
        channels = [end.result(300) for end in ends]
    channels[0].offer = offer  # type: ignore[attr-defined]  # kept as long as the channel
    return channels


def talk(channels: list[Channel]) -> list[Any]:
    """One round through all ends."""

    def answer(end: Channel) -> None:
        message, data = end.listen()
        assert data is not None
        end.reply({"got": message["kind"], "sum": int(data.sum()), "rank": end.rank})

    with ThreadPoolExecutor(len(channels)) as pool:
        answered = [pool.submit(answer, end) for end in channels[1:]]
        channels[0].say({"kind": "bucket"}, torch.ones(5, dtype=torch.uint8))
        answers = channels[0].hear("bucket")
        for each in answered:
            each.result(300)
    return answers


def fails_at(rank: int) -> Callable[..., GroupChannel]:
    def form(store: Any, own_rank: int, *rest: Any) -> GroupChannel:
        if own_rank == rank:
            raise RuntimeError("no route to host\nand a long trace")
        return GroupChannel(store, own_rank, *rest)

    return form


def test_ends_that_reach_each_other_form_a_process_group() -> None:
    channels = meet_all(3)
    assert [type(end) for end in channels] == [GroupChannel] * 3 and {end.timeout_s for end in channels} == {300.0}
    assert talk(channels) == [{"got": "bucket", "sum": 5, "rank": rank} for rank in (1, 2)]


@pytest.mark.parametrize(("rank", "who"), [(0, "the trainer"), (2, "rollout worker 1")])
def test_when_one_end_cannot_all_of_them_use_the_store_and_one_line_says_so(
    rank: int, who: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broadcast, "GroupChannel", fails_at(rank))
    monkeypatch.setattr(broadcast, "FORM_LIMIT_S", 2.0)  # the others wait so long for the one that cannot
    with caplog.at_level(logging.WARNING, logger="podium.workers.broadcast"):
        channels = meet_all(3)
    assert [type(end) for end in channels] == [StoreChannel] * 3
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"weights go through a store, which is slow: {who} formed no process group (RuntimeError: no route to host)"
    ]
    assert {end.note for end in channels} == set(said), "for the console"
    assert talk(channels) == [{"got": "bucket", "sum": 5, "rank": each} for each in (1, 2)]


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["trainer.max_staleness=2"], 3),
        (["trainer.max_staleness=0"], 0),
        (["trainer.max_staleness=2", "actor_rollout_ref.rollout.keep_weights=false"], 0),
        (["trainer.max_staleness=2", "trainer.max_restarts=0"], 0),
        (["trainer.max_staleness=2", "actor_rollout_ref.rollout.nnodes=0"], 0),
    ],
)
def test_older_weights_are_kept_only_where_samples_may_need_them(words: list[str], count: int) -> None:
    assert num_kept_versions(load_config(None, ["actor_rollout_ref.rollout.nnodes=1", *words])) == count
