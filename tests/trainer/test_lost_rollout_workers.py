"""What a RolloutPool does when workers are lost, told step by step with groups that only answer as they are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from podium.config import load_config
from podium.config.schema import TrainerConfig
from podium.errors import PodiumError, WorkerDied, WorkerError, WorkerTimeout
from podium.single_controller.futures import WorkerFuture
from podium.single_controller.supervise import RestartGroup
from podium.tracking import read_events
from podium.trainer.recorder import Recorder
from podium.trainer.rollout_pool import RolloutPool
from podium.trainer.rollout_workers import RolloutWorkers
from podium.trainer.stopping import RunStopped, StopSignals

DEAD = WorkerDied("rollout", 1, "receive", "its process is gone")
TRAINER_DEAD = WorkerDied("actor", 0, "publish", "its process is gone")
BROKEN_WAY = WorkerError("actor", 0, "publish", "PublishError: some rollout process did not take (bucket)")
SILENT = WorkerTimeout("rollout worker, rank 0, did not finish", "rollout", 0)
Step = tuple[Any, ...]


class Told(WorkerFuture[Any]):
    """Ends as it is told: with a value, with a failure, or not at all as long as its peer lives."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def done(self) -> bool:
        return self.outcome != "waits"

    def get(self, timeout: float | None = None, beside: WorkerFuture[Any] | None = None) -> Any:
        if not self.done() and beside is not None and beside.done():
            beside.get()
        if not self.done():
            raise WorkerTimeout("still waiting", "rollout", 1)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Play:
    """Both groups and their starts; `story` has what was asked, `fates` what comes of the nth such call."""

    def __init__(self, **fates: list[Any]) -> None:
        self.fates, self.story = fates, list[Step]()
        self.role, self.world_size, self.is_free = "rollout", 2, True
        self.allowed = 9

    def _told(self, *step: Any) -> Told:
        self.story.append(step)
        fates = self.fates.get(step[0], [])
        return Told(fates.pop(0) if fates else step)

    # the trainer's group
    def offer_channel(self) -> str:
        return "there"

    def future_of(self, method: str, *args: Any) -> Told:
        told = self._told(method, *args)
        return Told(["", "slow"]) if told.outcome == ("join_channel", 3) else told

    def answers(self, within_s: float) -> bool:
        return self.is_free

    # the rollout group
    def join_channel(self, meeting: str) -> Told:
        return Told(None)

    def receive(self) -> Told:
        fates = self.fates.get("receive", [])
        return Told(fates.pop(0) if fates else None)

    def generate_sequences(self, request: str) -> Told:
        return self._told("generate", request)

    # starting and ending
    def start(self) -> Play:
        self.story.append(("start",))
        fates = self.fates.get("start", [])
        if fates and (fate := fates.pop(0)) is not None:
            raise fate
        return self

    def end(self) -> None:
        self.story.append(("end",))

    def say(self, text: str) -> None:
        self.story.append(("say", text))

    def lost(self, failure: PodiumError) -> None:
        self.story.append(("lost", failure))
        self.allowed -= 1
        if self.allowed < 0:
            raise failure


def pool_at(play: Play, version: int, keeps_weights: bool = False) -> RolloutPool:
    """A pool that has published a version; its story begins here."""
    pool = RolloutPool(play, play, keeps_weights)
    pool.publish(version)
    play.story.clear()
    return pool


@pytest.mark.parametrize("failure", [DEAD, SILENT], ids=["dead", "silent"])
def test_requests_of_lost_workers_are_issued_again_behind_the_same_weights(failure: PodiumError) -> None:
    play = Play(generate=[failure])
    pool = pool_at(play, 3)
    assert pool.generate_sequences("A").get() == ("generate", "A")
    assert play.story == [
        ("generate", "A"),
        ("end",),
        ("lost", failure),
        ("start",),
        ("join_channel", 3),
        ("say", "slow"),
        ("publish", 3),
        ("generate", "A"),
    ]


@pytest.mark.parametrize(
    ("sent", "received"),
    [(BROKEN_WAY, DEAD), ("waits", DEAD), ("sent", DEAD)],
    ids=["the trainer saw it first", "the trainer still waits", "after the last word"],
)
def test_a_publish_that_loses_its_receivers_is_made_to_new_ones(sent: Any, received: Any) -> None:
    play = Play(publish=["first", sent, {"publish/version": 4}], receive=[None, received])
    pool = pool_at(play, 3)
    assert pool.publish(4) == {"publish/version": 4} and pool.version == 4
    assert play.story[1:4] == [("end",), ("lost", DEAD), ("start",)] and play.story[-1] == ("publish", 4)


def test_when_a_publish_takes_too_long_the_silent_receiver_is_named() -> None:
    too_long = WorkerTimeout("actor worker, rank 0, did not finish publish()", "actor", 0)
    play = Play(publish=["first", too_long, {}], receive=[None, "waits"])
    pool_at(play, 3).publish(4)
    (failure,) = (step[1] for step in play.story if step[0] == "lost")
    assert (failure.role, failure.rank) == ("rollout", 1)
    assert str(failure) == f"rollout worker, rank 1, was silent for as long: {too_long}"


def test_samples_made_ahead_are_drawn_again_from_the_weights_they_were_drawn_from() -> None:
    play = Play(generate=["A", "waits", "waits", "B", "C"], publish=["1", "2", BROKEN_WAY], receive=[None, None, DEAD])
    pool = pool_at(play, 1, keeps_weights=True)
    done = pool.generate_sequences("A")
    older = pool.generate_sequences("B")
    pool.publish(2)
    newer = pool.generate_sequences("C")
    play.story.clear()
    pool.publish(3)
    again = play.story[play.story.index(("say", "slow")) + 1 :]
    assert again == [("resend", 1), ("generate", "B"), ("resend", 2), ("generate", "C"), ("publish", 3)]
    assert [future.get() for future in (done, older, newer)] == ["A", "B", "C"]


def test_without_the_older_weights_the_run_starts_again_as_a_whole() -> None:
    play = Play(generate=["waits"], publish=["1", BROKEN_WAY], receive=[None, DEAD])
    pool = pool_at(play, 1)
    pool.generate_sequences("A")
    play.story.clear()
    with pytest.raises(WorkerDied, match="rollout worker, rank 1"):
        pool.publish(2)
    assert play.story == [("publish", 2)], "nobody was replaced"


def test_a_trainer_that_does_not_come_back_is_not_published_from() -> None:
    play = Play(generate=[DEAD])
    pool = pool_at(play, 1)
    play.is_free = False
    with pytest.raises(WorkerDied):
        pool.generate_sequences("A").get()
    assert play.story == [("generate", "A"), ("end",)]


@pytest.mark.parametrize(
    ("sent", "received", "raised"),
    [
        (TRAINER_DEAD, "waits", TRAINER_DEAD),
        (TRAINER_DEAD, WorkerError("rollout", 0, "receive", "PublishError: nothing was said"), TRAINER_DEAD),
        (WorkerError("actor", 0, "publish", "PublishError: Tensor x differs"), None, None),
    ],
    ids=["the trainer died", "the trainer died and its peers saw it first", "a real publish error"],
)
def test_what_is_not_the_rollout_workers_loss_is_raised(sent: WorkerError, received: Any, raised: Any) -> None:
    play = Play(publish=["1", sent], receive=[None, received])
    pool = pool_at(play, 1)
    with pytest.raises(WorkerError) as caught:
        pool.publish(2)
    assert caught.value is (raised or sent) and ("start",) not in play.story


def test_new_workers_that_are_lost_too_are_replaced_as_long_as_it_is_allowed() -> None:
    play = Play(generate=[DEAD], start=[None, DEAD, DEAD, None])
    assert pool_at(play, 1).generate_sequences("A").get() == ("generate", "A")
    assert play.story.count(("lost", DEAD)) == 3
    play = Play(generate=[DEAD], start=[None, DEAD, DEAD, None])
    pool = pool_at(play, 1)
    play.allowed = 2
    with pytest.raises(WorkerDied):
        pool.generate_sequences("A").get()


def test_an_error_of_the_workers_own_is_not_tried_again() -> None:
    own = WorkerError("rollout", 0, "generate_sequences", "ValueError: mine")
    play = Play(generate=[own])
    with pytest.raises(WorkerError, match="ValueError: mine"):
        pool_at(play, 1).generate_sequences("A").get()
    assert play.story == [("generate", "A")]


def test_a_callers_own_patience_costs_no_worker() -> None:
    play = Play(generate=["waits"])
    with pytest.raises(WorkerTimeout):
        pool_at(play, 1).generate_sequences("A").get(timeout=0.1)
    assert play.story == [("generate", "A")]


def test_workers_that_are_lost_before_the_first_weights_are_a_failure_of_the_start() -> None:
    play = Play(join_channel=[TRAINER_DEAD])
    with pytest.raises(WorkerDied, match="actor"):
        RolloutPool(play, play)
    connect: Callable[[str], Told] = lambda meeting: Told(DEAD)  # noqa: E731
    play = Play(join_channel=["waits"])
    play.join_channel = connect  # type: ignore[method-assign]
    with pytest.raises(WorkerDied, match="rollout"):
        RolloutPool(play, play)


# ---- RolloutWorkers: whether the run deserves new ones


class Trainer:
    """The parts of a trainer that its rollout workers touch."""

    def __init__(self, max_restarts: int = 1) -> None:
        self.failure_policy = RestartGroup(max_restarts)
        self.saver = SimpleNamespace(saved_step=None)
        self.stopping = StopSignals(TrainerConfig())
        self.events, self.said = list[tuple[PodiumError, str]](), list[str]()
        self.recorder = SimpleNamespace(
            workers_failed=lambda failure, decision: self.events.append((failure, decision)),
            console=SimpleNamespace(message=self.said.append),
            announcements=[],
        )
        self.heartbeats: list[Any] = []
        self.resume_point: object | None = None


def test_a_loss_counts_against_the_restarts_of_the_run_and_is_written_down() -> None:
    trainer = Trainer(max_restarts=1)
    workers = RolloutWorkers(trainer)
    workers.lost(DEAD)
    assert trainer.events == [(DEAD, "restart_rollout_group")]
    assert trainer.said == [
        "rollout worker, rank 1, failed in receive(): its process is gone; starting new rollout workers"
    ]
    with pytest.raises(WorkerDied):
        workers.lost(DEAD)
    trainer.saver.saved_step = 4
    workers.lost(DEAD)
    assert len(trainer.events) == 2, "a newer checkpoint makes it start counting anew"


def test_a_run_that_was_told_to_stop_starts_no_new_workers() -> None:
    trainer = Trainer()
    with trainer.stopping as stopping:
        stopping.request(15, "got SIGTERM")
        with stopping.shielded(), pytest.raises(WorkerDied):
            RolloutWorkers(trainer).lost(DEAD)
        with pytest.raises(RunStopped):
            RolloutWorkers(trainer).lost(DEAD)
    assert trainer.events == []


def test_the_end_of_a_group_is_not_reported_as_its_death() -> None:
    story: list[str] = []
    trainer, group = Trainer(), SimpleNamespace(shutdown=lambda: story.append("group ends"))
    other = SimpleNamespace(group=object(), stop=lambda: story.append("wrong"))
    trainer.heartbeats = [SimpleNamespace(group=group, stop=lambda: story.append("heartbeat ends")), other]
    workers = RolloutWorkers(trainer)
    workers.group = group
    workers.end()
    assert story == ["heartbeat ends", "group ends"] and trainer.heartbeats == [other]


def test_what_the_user_should_know_is_said_when_there_is_somebody_to_say_it_to() -> None:
    trainer = Trainer()
    trainer.recorder.say_once = trainer.said.append
    RolloutWorkers(trainer).say("slow")
    assert trainer.recorder.announcements == ["slow"] and trainer.said == [], "for the start of the record"
    trainer.resume_point = object()
    RolloutWorkers(trainer).say("slower")
    assert trainer.said == ["slower"]


def test_the_event_names_role_and_rank(tmp_path: Path) -> None:
    recorder = Recorder(load_config(None, [f"trainer.default_local_dir={tmp_path}", "trainer.logger=[]"]), 1)
    recorder.start(0, None)
    recorder.workers_failed(DEAD, "restart_rollout_group")
    recorder.workers_failed(SILENT, "raise")
    recorder.close()
    events = [e for e in read_events(tmp_path) if e["kind"] == "workers_failed"]
    assert [(e["role"], e["rank"], e["decision"]) for e in events] == [
        ("rollout", 1, "restart_rollout_group"),
        ("rollout", 0, "raise"),
    ]
