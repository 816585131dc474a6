"""An engine in another process: requests, weights, and what happens when that process is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch import Tensor, nn
from toy_backend import written

from podium.engines.rollout.base import SamplingParams, StopReason
from podium.engines.rollout.hosted import HostedEngine, mixed_seed
from podium.engines.rollout.process import HostProcess
from podium.errors import PublishError, RolloutError

MakeEngine = Callable[..., HostedEngine]
Weights = list[tuple[str, Tensor]]


def expected(prompt: list[int], seed: int, sample: int, count: int) -> list[int]:
    return written(prompt, mixed_seed(seed, sample), count, 1000)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(holds: Callable[[], bool], limit_s: float = 300.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def test_completions_come_in_the_order_of_their_prompts_and_depend_on_their_seeds_alone(
    engine: HostedEngine,
) -> None:
    prompts, params = [[1, 2], [3], [4, 5, 6]], SamplingParams(max_tokens=5)
    groups = engine.generate(prompts, params, n=2, seeds=[7, 8, 9])
    for prompt, seed, group in zip(prompts, [7, 8, 9], groups, strict=True):
        assert [c.token_ids for c in group] == [expected(prompt, seed, k, 5) for k in range(2)]
        assert all(c.stop_reason is StopReason.LENGTH for c in group)
    turned = engine.generate(prompts[::-1], params, n=2, seeds=[9, 8, 7])[::-1]
    assert turned == groups


def test_requests_are_awaited_aborted_and_refused_one_by_one(engine: HostedEngine) -> None:

    async def episodes() -> None:
        long = engine.submit([1], SamplingParams(max_tokens=9000))
        short = await engine.submit([2], SamplingParams(max_tokens=3), seed=4)
        assert short.token_ids == expected([2], 4, 0, 3)
        engine.abort(long)
        ended = await long
        assert ended.stop_reason is StopReason.ABORTED and 0 < len(ended.token_ids) < 9000
        with pytest.raises(RolloutError, match="no such prompt"):
            await engine.submit([999], SamplingParams(max_tokens=3))

    asyncio.run(asyncio.wait_for(episodes(), 300))
    with pytest.raises(RolloutError, match="Token 1000 is outside"):
        engine.submit([1000], SamplingParams(max_tokens=1))
    with pytest.raises(RolloutError, match="the engine holds 10000"):
        engine.submit([1], SamplingParams(max_tokens=10_000))


def test_a_paused_request_goes_on_after_new_weights_and_says_which_wrote_it(
    make_engine: MakeEngine, module: nn.Module, tmp_path: Path
) -> None:
    engine = make_engine(gate=str(tmp_path))
    engine.load_weights(list(module.state_dict().items()), 1)

    async def partial_rollout() -> None:
        request = engine.submit([1], SamplingParams(max_tokens=300), seed=2)
        waiting = asyncio.ensure_future(_wait(request))
        while not (tmp_path / "reached").exists():
            await asyncio.sleep(0.01)
        engine.pause()
        (tmp_path / "open").touch()
        engine.load_weights([(name, tensor + 1.0) for name, tensor in module.state_dict().items()], 2)
        await asyncio.sleep(0.1)
        assert not request.done
        engine.resume()
        done = await waiting
        assert done.token_ids == expected([1], 2, 0, 300) and done.version == 1

    asyncio.run(asyncio.wait_for(partial_rollout(), 300))
    assert engine.generate([[1]], SamplingParams(max_tokens=1))[0][0].version == 2


async def _wait(request: object) -> object:
    return await request  # type: ignore[misc]


def test_a_publish_that_is_not_complete_is_refused_by_the_tensors_name(engine: HostedEngine, module: nn.Module) -> None:
    weights: Weights = list(module.state_dict().items())
    faults: dict[str, Weights] = {
        "Tensor second.bias was not published": [(n, t) for n, t in weights if n != "second.bias"],
        "Tensor second.bias was published twice": [*weights, ("second.bias", module.second.bias)],  # type: ignore[list-item]
        r"Tensor second.bias was published with shape \[2\]": [(n, t[:2] if "bias" in n else t) for n, t in weights],
        "Tensor third was published, but": [*weights, ("third", weights[0][1])],
    }
    for message, stream in faults.items():
        with pytest.raises(PublishError, match=message):
            engine.load_weights(stream, 1)
        with pytest.raises(RolloutError, match=r"no usable weights: loading version 1 did not finish"):
            engine.generate([[1]], SamplingParams(max_tokens=1))
    engine.load_weights([(n, t) for n, t in weights if n != "tied.weight"], 1)  # the same tensor as first.weight
    assert engine.generate([[1]], SamplingParams(max_tokens=1))[0][0].version == 1


def test_a_worker_that_lost_a_tensor_is_caught(make_engine: MakeEngine, module: nn.Module) -> None:
    engine = make_engine(loses="second.bias", tensor_parallel_size=2)
    with pytest.raises(PublishError, match=r"Tensor second.bias did not arrive in worker 0"):
        engine.load_weights(list(module.state_dict().items()), 1)


def test_weights_that_are_taken_and_not_used_are_caught(make_engine: MakeEngine, module: nn.Module) -> None:
    engine = make_engine(ignores=True)
    engine.load_weights(list(module.state_dict().items()), 1)
    engine.load_weights(list(module.state_dict().items()), 2)  # nothing changed: nothing to see
    with pytest.raises(PublishError, match="took them and does not use them"):
        engine.load_weights([(name, tensor + 1e-3) for name, tensor in module.state_dict().items()], 3)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_engine_is_replaced_with_its_weights_and_its_requests(
    make_engine: MakeEngine, module: nn.Module, signum: signal.Signals, tmp_path: Path
) -> None:
    engine = make_engine(gate=str(tmp_path))
    engine.load_weights(list(module.state_dict().items()), 5)
    before, host = engine.probe(), engine.host
    assert isinstance(host, HostProcess)
    pid, folder = host.pid, host.folder

    def strike() -> None:
        """In the middle of the requests; only the process that falls silent has little patience shown to it."""
        wait_until((tmp_path / "reached").exists)
        os.kill(pid, signum)
        host.silence_limit_s = 1.0
        (tmp_path / "open").touch()  # for the next one

    with ThreadPoolExecutor(1) as pool:
        struck = pool.submit(strike)
        (group,) = engine.generate([[1]], SamplingParams(max_tokens=300), n=4, seeds=[3])
        struck.result()
    assert [c.token_ids for c in group] == [expected([1], 3, k, 300) for k in range(4)]
    assert engine.restarts == 1 and engine.host.pid != pid
    assert {c.version for c in group} == {5} and engine.probe().equal(before)
    wait_until(lambda: not is_alive(pid))
    assert not folder.exists()


def test_an_engine_that_is_lost_again_and_again_ends_the_run(make_engine: MakeEngine) -> None:
    engine = make_engine(max_restarts=1, dies_after=1)
    with pytest.raises(RolloutError, match=r"lost 2 times .* signal SIGKILL ended it.*max_engine_restarts=1"):
        engine.generate([[1]], SamplingParams(max_tokens=10))


def test_an_engine_that_does_not_start_says_why(make_engine: MakeEngine) -> None:
    with pytest.raises(RolloutError, match="does not like its settings"):
        make_engine(refuses=True)
    with pytest.raises(RolloutError, match="did not start: it ended with code 3"):
        make_engine(dies_at_start=True)


ORPHAN = """
import sys, time
sys.path[:0] = [{tests!r}]
from toy_engine import start
engine = start()
print(engine.host.pid, engine.host.folder, flush=True)
time.sleep(3600)
"""


def test_nothing_is_left_when_the_owner_is_killed() -> None:
    code = ORPHAN.format(tests=str(Path(__file__).parent))
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, folder = owner.stdout.readline().rstrip("\n").split(" ", 1)
    owner.kill()
    owner.wait()
    wait_until(lambda: not is_alive(int(pid)) and not Path(folder).exists())
