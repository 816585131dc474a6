from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podium.config.schema import RewardConfig
from podium.rewards.records import RewardRow
from podium.rewards.scorer import RewardScorer

FUNCTIONS = """
import asyncio, os, time

def behave(data_source, solution_str, ground_truth, extra_info):
    match solution_str:
        case "raise": raise RuntimeError("as asked")
        case "hang":
            while True: pass
        case "sleep": time.sleep(3600)
        case "die": os._exit(3)
        case "nan": return float("nan")
        case "none": return None
        case "str": return "seven"
        case "nodict": return {"acc": 1}
        case "unsendable": return {"score": 1.0, "f": lambda: 0}
        case "spawn":
            import subprocess
            child = subprocess.Popen(["sleep", "3600"])
            open(ground_truth + ".new", "w").write(str(child.pid))
            os.rename(ground_truth + ".new", ground_truth)
            while True: pass
    return {"score": float(solution_str), "pid": os.getpid()}

def trl(prompts, completions, level, **columns):
    assert len(prompts) == len(completions) == len(level)
    return [None if text == "skip" else float(len(text)) + l for text, l in zip(completions, level)]

def trl_chat(prompts, completions):
    return [float(prompt[-1]["content"] == "hi" and message[0]["role"] == "assistant")
            for prompt, message in zip(prompts, completions)]

def trl_short(completions, **kw):
    return [1.0]

async def verl_async(data_source, solution_str, ground_truth, extra_info):
    await asyncio.sleep(3600 if solution_str == "hang" else 0.01)
    return 1.0

async def trl_async(prompts, completions, **columns):
    await asyncio.sleep(0.01)
    return [0.5 for _ in completions]

def verl_batch(data_sources, solution_strs, ground_truths, extra_infos, bonus=0.0):
    return [{"score": len(s) + bonus, "length": len(s)} for s in solution_strs]

def one(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0

def with_kwargs(solution_str, scale):
    return scale * len(solution_str)

def other_names(source, text, truth, extra):
    return 1.0 if text == truth else 0.0
"""


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FUNCTIONS)
    return path


@pytest.fixture
def scorer(functions: Path) -> Iterator[Callable[..., RewardScorer]]:
    made: list[RewardScorer] = []

    def make(*names: str, **settings: object) -> RewardScorer:
        weights = {f"{functions}:{name}" if name.isidentifier() else name: 1.0 for name in names}
        config = RewardConfig(functions=weights, **({"num_processes": 2, "timeout_s": 300.0} | settings))  # type: ignore[arg-type]
        made.append(RewardScorer(config))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def rows() -> Callable[..., list[RewardRow]]:
    def make(*responses: str, prompt: object = "q", **columns: object) -> list[RewardRow]:
        extra = {"level": 1}
        return [
            RewardRow("mine", text, columns.get("ground_truth"), extra, prompt, uid=f"u{i}")
            for i, text in enumerate(responses)
        ]

    return make
