"""What a slow reward adds to a step: rewards run in processes of their own while generation goes on.

    python bench/reward_overlap.py [--steps 13] [--share 0.8] [--processes 4] [--pace-ms 10]

A first run measures how long generation takes here. In the second the reward sleeps in every other step, so long that
the sleeps of a step, shared over the processes, take `share` of that time; each such step is compared with its two
neighbours, so that a machine that slows down slows both. What does not fit beside generation is waited for, so a share
above 1 must show; `--processes 0` runs rewards in the trainer, one after the other, for comparison. Each pass of the
rollout engine waits for `pace-ms`, as it would for a device: the tiny model alone would make the figure one of how busy
the CPU is.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from podium.config import load_config
from podium.engines.rollout.native.engine import NativeEngine
from podium.engines.rollout.request import Request
from podium.tracking import read_metrics
from podium.trainer.main_ppo import run_ppo

PROMPTS, SAMPLES = 16, 8
REWARD = f"""
import time

def score(data_source, solution_str, ground_truth, extra_info, seconds=0.0):
    if extra_info["index"] // {PROMPTS} % 2:  # rows come in order: every other step
        time.sleep(seconds)
    return float(len(solution_str))
"""


def slow_down(pace_s: float) -> None:
    """Let every step of the native engine take at least this long."""
    plain = NativeEngine.step

    def step(self: NativeEngine) -> list[Request]:
        time.sleep(pace_s)
        return plain(self)

    NativeEngine.step = step  # type: ignore[method-assign]


def run(place: Path, steps: int, seconds: float, processes: int) -> list[dict[str, float]]:
    """The steps of a run; in the second one each response's reward sleeps, and in every other one after it."""
    (place / "sleeping_reward.py").write_text(REWARD)
    folder = place / f"run_{seconds}"
    words = [
        f"data.train_files=['task:addition?rows={PROMPTS * steps}']",
        *("data.val_files=['task:addition?rows=4']", "data.shuffle=false", f"data.train_batch_size={PROMPTS}"),
        *("data.max_prompt_length=64", "data.max_response_length=24", f"actor_rollout_ref.rollout.n={SAMPLES}"),
        *("actor_rollout_ref.rollout.max_num_seqs=8", "actor_rollout_ref.rollout.kv_cache_gb=0.1"),
        *("actor_rollout_ref.rollout.ignore_eos=true", "actor_rollout_ref.actor.optim.lr=1e-6"),
        *(f"trainer.total_training_steps={steps}", "trainer.val_before_train=false"),
        *("trainer.save_freq=0", "trainer.logger=[]", f"trainer.default_local_dir={folder}"),
        f"reward.custom_reward_function={place / 'sleeping_reward.py'}:score",
        f"reward.kwargs={{seconds: {seconds}}}",
        f"reward.num_processes={processes}",
    ]
    run_ppo(load_config(None, words))
    return [record for record in read_metrics(folder) if "timing_s/step" in record]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--pace-ms", type=float, default=10.0)
    parser.add_argument("--share", type=float, default=0.8)
    parser.add_argument("--processes", type=int, default=4)
    arguments = parser.parse_args()
    slow_down(arguments.pace_ms / 1000)
    lanes = max(arguments.processes, 1)
    with tempfile.TemporaryDirectory() as place:
        first = run(Path(place), 3, 0.0, arguments.processes)
        generation = statistics.median(record["timing_s/gen"] for record in first[1:])
        seconds = arguments.share * generation * lanes / (PROMPTS * SAMPLES)
        records = run(Path(place), arguments.steps, seconds, arguments.processes)
    steps = [record["timing_s/step"] for record in records]
    ratios = [2 * steps[at] / (steps[at - 1] + steps[at + 1]) for at in range(3, len(steps) - 1, 2)]
    asleep = PROMPTS * SAMPLES * seconds / lanes
    lengths = statistics.median(record["response_length/mean"] for record in records)
    print(
        f"{PROMPTS} x {SAMPLES} responses of {lengths:.0f} tokens: generation {generation:.2f} s, "
        f"step {statistics.median(steps[2::2]):.2f} s, with sleeping rewards {statistics.median(steps[3::2]):.2f} s"
    )
    print(
        f"{asleep:.2f} s of sleep ({seconds * 1000:.0f} ms per response, {arguments.processes} processes) add "
        f"{statistics.median(ratios) - 1:+.1%} ({min(ratios) - 1:+.1%} to {max(ratios) - 1:+.1%}, {len(ratios)} steps)"
    )


if __name__ == "__main__":
    main()
