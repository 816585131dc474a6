"""Multi-turn episodes, each at its own pace, against the batch-synchronous scheme. Same engine, same work, interleaved.

    OMP_NUM_THREADS=1 python bench/agents.py            # both settings, five pairs each
    python bench/agents.py --retrieval                  # how many queries a second a server answers

The synchronous scheme is the usual one: generate a turn for every active episode, wait for the longest, answer all of
them together, wait for the slowest answer, go on. Turn lengths are lognormal and the same in both schemes; so are the
tokens (but for a rounding here and there), which is checked before anything is timed. Environments answer at once, or
after a lognormal pause, as a tool or a search engine does. A second comparison shows what keeping an episode's pages
between turns is worth.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import transformers

from podium.agents.environment import EpisodeRow, Message, Observation
from podium.agents.generation import LLMGenerationManager, turn_seed
from podium.agents.limits import ContextLimit, Limits, TurnLimit
from podium.agents.turns import TurnFormat
from podium.config.schema import ModelConfig, RolloutConfig
from podium.engines.rollout.base import SamplingParams
from podium.engines.rollout.native.engine import NativeEngine
from podium.engines.rollout.request import Request
from podium.models.load import load_causal_lm, load_tokenizer

OBSERVATION = " the answer of a tool, some forty bytes long "


@dataclass(frozen=True)
class Work:
    """The episodes: a prompt each, and for each turn its length in tokens and the pause of its answer."""

    prompts: list[list[int]]
    lengths: np.ndarray[Any, Any]  # [episodes, turns]
    pauses: np.ndarray[Any, Any]  # [episodes, turns] seconds

    @property
    def num_tokens(self) -> int:
        return int(self.lengths.sum())


def make_work(tokenizer: Any, episodes: int, turns: int, sigma: float, pause_s: float) -> Work:
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(3.0, sigma, (episodes, turns))).astype(int), 2, 300)
    pauses = np.exp(rng.normal(-0.5, 1.0, (episodes, turns))) * pause_s
    prompts = [tokenizer.encode(f"<|im_start|>user\nquestion {n} about something<|im_end|>\n") for n in range(episodes)]
    return Work(prompts, lengths, pauses)


class Paced:
    """Answers after the work's pauses."""

    def __init__(self, work: Work) -> None:
        self.work = work

    async def reset(self, row: EpisodeRow) -> list[Message] | None:
        self.episode, self.turn = int(row.uid), 0
        return None

    async def step(self, text: str, tokens: Sequence[int]) -> Observation:
        self.turn += 1
        if self.turn == self.work.lengths.shape[1]:
            return Observation(done=True)
        pause = float(self.work.pauses[self.episode, self.turn - 1])
        if pause:
            await asyncio.sleep(pause)
        return Observation(OBSERVATION)

    async def close(self) -> None: ...


class PacedEnvironments:
    stop: tuple[str, ...] = ()
    scores = False
    tools: list[dict[str, Any]] | None = None

    def __init__(self, work: Work) -> None:
        self.work = work

    async def start(self) -> None: ...

    def make(self) -> Paced:
        return Paced(self.work)

    async def close(self) -> None: ...


class Exact:
    """The engine, with each turn exactly as long as the work says."""

    def __init__(self, engine: NativeEngine, work: Work, keep: bool) -> None:
        self.engine, self.version = engine, engine.version
        turns = work.lengths.shape[1]
        self._length = {
            turn_seed(episode, turn): int(work.lengths[episode, turn])
            for episode in range(len(work.prompts))
            for turn in range(turns)
        }
        if keep:
            self.submit_turn, self.keep, self.release = self._submit_turn, engine.keep, engine.release

    def submit(self, prompt: list[int], params: SamplingParams, seed: int = 0, sample: int = 0) -> Request:
        return self.engine.submit(prompt, replace(params, max_tokens=self._length[seed]), seed, sample)

    def _submit_turn(
        self, prompt: list[int], params: SamplingParams, seed: int, sample: int, previous: Request | None
    ) -> Request:
        return self.engine.submit_turn(prompt, replace(params, max_tokens=self._length[seed]), seed, sample, previous)

    def abort(self, request: Request) -> None:
        self.engine.abort(request)


PARAMS = SamplingParams(max_tokens=300, temperature=1.0, ignore_eos=True)
LIMITS = Limits(TurnLimit(1000), ContextLimit(1 << 20))


def at_own_pace(engine: NativeEngine, tokenizer: Any, work: Work, keep: bool = True) -> list[list[int]]:
    manager = LLMGenerationManager(
        Exact(engine, work, keep),
        tokenizer,
        PacedEnvironments(work),
        LIMITS,
        1000,  # type: ignore[arg-type]
    )
    rows = [EpisodeRow(uid=str(n)) for n in range(len(work.prompts))]
    groups = asyncio.run(manager.run_llm_loop(rows, work.prompts, PARAMS, 1, range(len(rows))))
    return [group[0].token_ids for group in groups]


def turn_by_turn(engine: NativeEngine, tokenizer: Any, work: Work) -> list[list[int]]:
    """All episodes take their turn together, and are answered together."""
    exact, turns = Exact(engine, work, keep=False), work.lengths.shape[1]
    observed = TurnFormat(tokenizer, 1000).encode_observation(Observation(OBSERVATION), False)
    contexts = [list(prompt) for prompt in work.prompts]
    for turn in range(turns):
        requests = [exact.submit(context, PARAMS, turn_seed(n, turn)) for n, context in enumerate(contexts)]
        while not all(request.done for request in requests):
            engine.step()
        for context, request in zip(contexts, requests, strict=True):
            context += request.result().token_ids
            if turn + 1 < turns:
                context += observed
        if turn + 1 < turns:
            time.sleep(float(work.pauses[:, turn].max()))  # all tools run at once; the slowest decides
    return [context[len(prompt) :] for context, prompt in zip(contexts, work.prompts, strict=True)]


def compare(
    name: str, first: Callable[[], Any], second: Callable[[], Any], pairs: int, num_tokens: int, wall: bool = False
) -> None:
    """Interleaved pairs; how many times faster the second is. Without pauses the work is a CPU's and CPU seconds of
    this process are counted, which others on the machine do not disturb; with pauses, `wall`, the clock on the wall."""
    clock = time.perf_counter if wall else time.process_time
    same = [a == b for a, b in zip(first(), second(), strict=True)]
    assert sum(same) >= 0.9 * len(same), f"{len(same) - sum(same)} of {len(same)} episodes differ"
    print(f"{sum(same)} of {len(same)} episodes have the same tokens in both (the others part at a rounding)")
    ratios, rates = [], []
    for _ in range(pairs):
        times = []
        for run in (first, second):
            start = clock()
            run()
            times.append(clock() - start)
        ratios.append(times[0] / times[1])
        rates.append((num_tokens / times[0], num_tokens / times[1]))
    median = statistics.median
    print(
        f"{name}: {median(ratios):.2f}x (min {min(ratios):.2f}, max {max(ratios):.2f}, {pairs} pairs); "
        f"{median(a for a, _ in rates):,.0f} -> {median(b for _, b in rates):,.0f} written tokens per "
        f"{'second' if wall else 'CPU second'}"
    )


def bench_episodes(args: argparse.Namespace) -> None:
    tokenizer = load_tokenizer("builtin:tiny")
    module = load_causal_lm(ModelConfig(), device=torch.device("cpu"))
    config = RolloutConfig(max_num_seqs=args.slots, max_num_batched_tokens=8192)
    engine = NativeEngine(module, config, tokenizer)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads")
    for pause_s in (0.0, args.pause):
        if args.only not in (None, "pauses" if pause_s else "plain"):
            continue
        work = make_work(tokenizer, args.episodes, args.turns, args.sigma, pause_s)
        print(
            f"\n{args.episodes} episodes of {args.turns} turns in {args.slots} slots, {work.num_tokens:,} written "
            f"tokens, turn lengths lognormal (sigma {args.sigma:g}, mean {work.lengths.mean():.0f}, longest "
            f"{work.lengths.max()}), "
            f"answers after {work.pauses.mean():.2f} s on average, {work.pauses.max():.2f} s at most"
        )
        own = lambda: at_own_pace(engine, tokenizer, work)  # noqa: E731, B023
        compare(
            "each at its own pace, against turn by turn",
            lambda: turn_by_turn(engine, tokenizer, work),  # noqa: B023
            own,
            args.pairs,
            work.num_tokens,
            wall=pause_s > 0,
        )
    if args.only not in (None, "pages"):
        return
    work = make_work(tokenizer, args.episodes, args.turns, args.sigma, 0.0)
    compare(
        "pages kept between turns, against computed again",
        lambda: at_own_pace(engine, tokenizer, work, keep=False),
        lambda: at_own_pace(engine, tokenizer, work),
        args.pairs,
        work.num_tokens,
    )


def bench_retrieval(args: argparse.Namespace) -> None:
    from podium.retrieval.corpus import Document
    from podium.retrieval.index import BM25Index
    from podium.retrieval.server import Beside

    rng = random.Random(0)
    words = [f"word{n}" for n in range(30_000)]
    weights = np.cumsum([1 / (n + 10) for n in range(len(words))])
    start = time.perf_counter()
    documents = [
        Document(str(n), " ".join(rng.choices(words, k=2)), " ".join(rng.choices(words, cum_weights=weights, k=60)))
        for n in range(args.documents)
    ]
    made = time.perf_counter()
    index = BM25Index(documents)
    print(
        f"{len(documents):,} documents of 62 words, made in {made - start:.1f} s, indexed in "
        f"{time.perf_counter() - made:.1f} s"
    )
    queries = [" ".join(rng.choices(words, cum_weights=weights, k=6)) for _ in range(4096)]
    start = time.process_time()
    index.search(queries, 3)
    seconds = time.process_time() - start
    print(f"the index alone: {len(queries) / seconds:,.0f} queries per CPU second, six words each, top 3")
    server = Beside(index)
    for batch, clients in ((1, 8), (64, 4), (256, 4)):
        chosen = queries if batch > 1 else queries[:1024]
        parts = [chosen[n::clients] for n in range(clients)]
        rates, cpu = [], []
        for _ in range(args.pairs):
            threads = [threading.Thread(target=_ask, args=(server.url, part, batch)) for part in parts]
            start, used = time.perf_counter(), time.process_time()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            rates.append(len(chosen) / (time.perf_counter() - start))
            cpu.append(len(chosen) / (time.process_time() - used))
        print(
            f"over HTTP, {clients} clients, {batch} queries a request: {statistics.median(rates):,.0f} queries/s "
            f"(min {min(rates):,.0f}, max {max(rates):,.0f}), {statistics.median(cpu):,.0f} per CPU second, clients "
            "included"
        )
    server.close()


def _ask(url: str, queries: Sequence[str], batch: int) -> None:
    for start in range(0, len(queries), batch):
        body = json.dumps({"queries": queries[start : start + batch], "topk": 3, "return_scores": True}).encode()
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as response:
            assert len(json.loads(response.read())["result"]) == len(queries[start : start + batch])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--pause", type=float, default=0.2)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", choices=["plain", "pauses", "pages"], help="one of the three comparisons")
    parser.add_argument("--retrieval", action="store_true")
    parser.add_argument("--documents", type=int, default=100_000)
    args = parser.parse_args()
    (bench_retrieval if args.retrieval else bench_episodes)(args)


if __name__ == "__main__":
    main()
