"""Training in a child process that meets a chosen fault in a chosen phase.

Children are forked from a server that has everything imported, so a run costs seconds. The faults are real: the child
kills, stops or starves itself in the middle of a phase; nothing in podium knows of them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TINY = [
    "data.train_files=task:addition?rows=24",
    "data.val_files=task:addition?rows=4",
    "data.train_batch_size=4",
    "data.max_prompt_length=64",
    "data.max_response_length=4",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.kv_cache_gb=0.02",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "algorithm.kl_ctrl.type=adaptive",
    "trainer.val_before_train=false",
    "trainer.save_freq=1",
    "trainer.max_ckpt_to_keep=2",
    "trainer.logger=[]",
]
PPO = [
    "algorithm.adv_estimator=gae",
    "algorithm.use_kl_in_reward=true",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "trainer.test_freq=1",
]
CLOCKS = ("timing", "perf/", "publish/seconds")
LIMIT_S = 900.0
"""Of one process: only a hang comes near it."""


@dataclass(frozen=True)
class Fault:
    """What happens in the `nth` entry of a phase: a signal to oneself, or a limit on the size of files."""

    phase: str
    nth: int = 1
    signum: int = signal.SIGKILL
    max_file_bytes: int | None = None
    lasts: int = 1
    """With `max_file_bytes`: for so many entries of the phase."""


def without_clocks(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What must be equal in two runs of the same thing."""
    return [{k: v for k, v in step.items() if not k.startswith(CLOCKS)} for step in steps]


def context() -> Any:
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(["podium.trainer.main_ppo", "podium.cli.main", "fault_driver"])
    return forking


def train(folder: Path, *words: str, faults: tuple[Fault, ...] = (), limit_s: float = LIMIT_S) -> int:
    """Run `podium train` in a child; the exit code, negative for a signal."""
    return finish(start(folder, *words, faults=faults), limit_s)


def start(folder: Path, *words: str, faults: tuple[Fault, ...] = ()) -> Any:
    """The child, running. It leads a session of its own, so that whatever it leaves behind can be found."""
    forking = context()
    ready, says_ready = forking.Pipe(duplex=False)
    settings = [*TINY, f"trainer.default_local_dir={folder}", *words]
    child = forking.Process(target=_run, args=(settings, faults, says_ready))
    child.start()
    says_ready.close()
    assert ready.poll(LIMIT_S), (
        "the process did not start"
    )  # before that a signal would meet the fork server's handlers
    ready.close()
    child.output = Path(f"{folder}.out")
    return child


def finish(child: Any, limit_s: float = LIMIT_S) -> int:
    child.join(limit_s)
    if child.exitcode is None:
        os.kill(child.pid, signal.SIGUSR1)  # writes where its threads are
        child.join(5)
        os.kill(child.pid, signal.SIGKILL)
        raise AssertionError(f"the run did not end within {limit_s} s:\n{child.output.read_text()[-8000:]}")
    code = int(child.exitcode)
    child.close()
    return code


def of_session(session: int) -> list[int]:
    """The processes of a session that are still there, zombies aside."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                state, _, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(of) == session and state != "Z":
                    found.append(int(entry.name))
    return found


def _run(words: list[str], faults: tuple[Fault, ...], ready: Any) -> None:
    from podium.cli.main import main

    os.setsid()
    folder = next(word.partition("=")[2] for word in words if word.startswith("trainer.default_local_dir="))
    scratch = Path(f"{folder}.tmp")
    scratch.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    os.environ["RAY_TMPDIR"] = "/tmp"  # its sockets need short names
    output = os.open(f"{folder}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.register(signal.SIGUSR1, file=2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_the_test, daemon=True).start()
    _plant(faults)
    try:
        ready.send(None)
        ready.close()
        code = main(["train", *words])
    except KeyboardInterrupt:  # before or behind the command's own handling
        code = 128 + signal.SIGINT
    sys.exit(code)


def _end_with_the_test() -> None:
    """A test process that is killed leaves no run behind: it would write on into a folder that the next test made."""
    test = multiprocessing.parent_process()
    assert test is not None
    test.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _plant(faults: tuple[Fault, ...]) -> None:
    from podium.checkpoint import store
    from podium.trainer import ray_trainer, recorder

    entered: dict[str, int] = {}

    def strike(phase: str) -> None:
        entered[phase] = entered.get(phase, 0) + 1
        for fault in faults:
            if fault.phase == phase and fault.max_file_bytes is not None:
                starving = fault.nth <= entered[phase] < fault.nth + fault.lasts
                limit = fault.max_file_bytes if starving else resource.RLIM_INFINITY
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            elif fault.phase == phase and fault.nth == entered[phase]:
                os.kill(os.getpid(), fault.signum)

    timer = ray_trainer.marked_timer

    @contextmanager
    def striking_timer(name: str, timing: dict[str, float]) -> Iterator[None]:
        with timer(name, timing):
            strike(name)
            yield

    def before(owner: Any, name: str, phase: str) -> None:
        function = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            strike(phase)
            return function(*args, **kwargs)

        setattr(owner, name, wrapped)

    ray_trainer.marked_timer = striking_timer
    before(ray_trainer.RayPPOTrainer, "_load_checkpoint", "load")
    before(recorder.Recorder, "step", "record")
    before(store.CheckpointStore, "stage", "stage")
    before(store, "write_manifest", "seal")
    before(store, "sync_folder", "renamed")  # between the rename and `latest`
    before(store.CheckpointStore, "retain", "retain")
