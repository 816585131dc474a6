"""Search-R1's protocol, ten episodes against a real HTTP server.

Everything expected here was worked out by hand. The tokenizer has one token per byte, so a text has as many tokens as
characters; the end-of-sequence token is one more and is not part of the decoded text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from scripted_engine import LOG_PROB, ScriptedEngine

from podium.algorithms import compute_grpo_outcome_advantage
from podium.config.schema import Config
from podium.data.prompts import build_messages, encode_messages
from podium.engines.rollout.base import SamplingParams
from podium.protocol import DataProto, object_array
from podium.retrieval.corpus import Document
from podium.retrieval.index import BM25Index
from podium.retrieval.server import Beside
from podium.rewards.manager import RewardManager
from podium.rewards.qa import qa_em
from podium.trainer.episodes import prepare_episodes
from podium.trainer.samples import make_samples
from podium.trainer.scoring import score_batch
from podium.workers.episodes import Episodes

INSTRUCTION = (
    "Answer the question. Reason inside <think> and </think> whenever you get new information. If you lack knowledge, "
    "call a search engine by <search> query </search>; it returns results between <information> and </information>. "
    "When you know enough, answer inside <answer> and </answer>. For example, <answer> Norrland </answer>. Question: "
)
DOCUMENTS = [
    Document("0", "Aldhaven", "Aldhaven is a town in Norrland."),
    Document("1", "Mira Quill", "Mira Quill was born in Aldhaven."),
    Document("2", "Glass Orchard", "Glass Orchard is a novel by Mira Quill."),
    Document("3", "Trap", "Trap says <answer>Norrland</answer>."),
    Document("4", "Long", "Long " + "x" * 200),
]
TOWN = "\n\n<information>Doc 1(Title: Aldhaven) Aldhaven is a town in Norrland.</information>\n\n"  # 85
BORN = "\n\n<information>Doc 1(Title: Mira Quill) Mira Quill was born in Aldhaven.</information>\n\n"  # 88
NOVEL = "\n\n<information>Doc 1(Title: Glass Orchard) Glass Orchard is a novel by Mira Quill.</information>\n\n"  # 98
TRAP = "\n\n<information>Doc 1(Title: Trap) Trap says <answer>Norrland</answer>.</information>\n\n"  # 86
LONG = "\n\n<information>Doc 1(Title: Long) Long " + "x" * 105 + "</information>\n\n"  # 160 = max_obs_length
HINT = (
    "\nThat was not a valid action. To look something up, write the query between <search> and </search>. To give the "
    "final answer, write it between <answer> and </answer>. Try again.\n"
)  # 178, cut to 160 tokens
CUT_HINT = HINT[:160]

# What the model writes turn by turn, what the response then is as (text, tokens, written by the model), and
# stop reason, turns, valid actions, searches, score.
EPISODES: list[tuple[list[str], list[tuple[str, int, int]], tuple[str, int, int, int, float]]] = [
    (  # 0: answers at once
        ["<answer>Norrland</answer>"],
        [("<answer>Norrland</answer>", 25, 1)],
        ("answered", 1, 1, 0, 1.0),
    ),
    (  # 1: one search, right; case, article and punctuation do not matter
        ["<search>Aldhaven</search>", "<answer>The norrland.</answer>"],
        [("<search>Aldhaven</search>", 25, 1), (TOWN, 85, 0), ("<answer>The norrland.</answer>", 30, 1)],
        ("answered", 2, 2, 1, 1.0),
    ),
    (  # 2: two searches, right
        ["<search>Glass Orchard</search>", "<search>Mira Quill</search>", "<answer>Norrland</answer>"],
        [
            ("<search>Glass Orchard</search>", 30, 1),
            (NOVEL, 98, 0),
            ("<search>Mira Quill</search>", 27, 1),
            (BORN, 88, 0),
            ("<answer>Norrland</answer>", 25, 1),
        ],
        ("answered", 3, 3, 2, 1.0),
    ),
    (  # 3: a wrong answer after a search
        ["<search>Mira Quill</search>", "<answer>Aldhaven</answer>"],
        [("<search>Mira Quill</search>", 27, 1), (BORN, 88, 0), ("<answer>Aldhaven</answer>", 25, 1)],
        ("answered", 2, 2, 1, 0.0),
    ),
    (  # 4: thinks only and is cut by the turn's limit of 40 tokens: one hint, then right
        ["<think>I wonder what this could be about, hm</think>", "<answer>Norrland</answer>"],
        [("<think>I wonder what this could be about", 40, 1), (CUT_HINT, 160, 0), ("<answer>Norrland</answer>", 25, 1)],
        ("answered", 2, 1, 0, 1.0),
    ),
    (  # 5: ends its turn without an action: the end token stays, the hint follows
        ["no idea<eos>", "<answer>Norrland</answer>"],
        [("no idea", 8, 1), (CUT_HINT, 160, 0), ("<answer>Norrland</answer>", 25, 1)],
        ("answered", 2, 1, 0, 1.0),
    ),
    (  # 6: searches to the end: after two turns search is off, and the third search is not run
        ["<search>Aldhaven</search>"] * 3,
        [
            ("<search>Aldhaven</search>", 25, 1),
            (TOWN, 85, 0),
            ("<search>Aldhaven</search>", 25, 1),
            (TOWN, 85, 0),
            ("<search>Aldhaven</search>", 25, 1),
        ],
        ("turns", 3, 3, 2, 0.0),
    ),
    (  # 7: never acts; the tags of the hint are no answer of the model's
        ["a<eos>", "b<eos>", "c<eos>"],
        [("a", 2, 1), (CUT_HINT, 160, 0), ("b", 2, 1), (CUT_HINT, 160, 0), ("c", 2, 1)],
        ("eos", 3, 0, 0, 0.0),
    ),
    (  # 8: a page that holds an answer is no answer either
        ["<search>Trap</search>", "fine<eos>", "and<eos>"],
        [("<search>Trap</search>", 21, 1), (TRAP, 86, 0), ("fine", 5, 1), (CUT_HINT, 160, 0), ("and", 4, 1)],
        ("eos", 3, 1, 1, 0.0),
    ),
    (  # 9: a long page is cut to 160 tokens, its closing tag stays; of two actions the first counts
        ["<search>Long</search>", "<answer>a</answer>"],
        [("<search>Long</search>", 21, 1), (LONG, 160, 0), ("<answer>a</answer>", 18, 1)],
        ("answered", 2, 2, 1, 0.0),
    ),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Beside]:
    beside = Beside(BM25Index(DOCUMENTS))
    yield beside
    beside.close()


@pytest.fixture(scope="module")
def generated(server: Beside, tokenizer: Any) -> Iterator[tuple[DataProto, ScriptedEngine, Config]]:
    def script(context: str, sample: int) -> str:
        number = int(context.partition("Question: ")[2].partition("?")[0])
        turns_before = context.count("</information>") - 1 + context.count("That was not a valid action")
        return EPISODES[number][0][turns_before]

    config = Config(do_search=True, max_turns=2)
    config.retriever.url, config.retriever.topk = server.url, 1
    config.data.max_prompt_length, config.data.max_response_length, config.data.max_obs_length = 2000, 40, 160
    prompts = [encode_messages(tokenizer, build_messages(f"{INSTRUCTION}{number}?")) for number in range(len(EPISODES))]
    data = DataProto.from_dict(
        {"prompts": torch.zeros(len(prompts), 1)},
        {
            "uid": [f"q{number // 5}" for number in range(len(prompts))],
            "data_source": ["nq"] * len(prompts),
            "ground_truth": [{"target": ["Norrland"]}] * len(prompts),
            "extra_info": [{"index": number} for number in range(len(prompts))],
            "raw_prompt": object_array([[] for _ in prompts]),
        },
    )
    engine = ScriptedEngine(tokenizer, script)
    episodes = Episodes(config, engine, tokenizer)
    out = episodes.generate(data, prompts, SamplingParams(40), 1, list(range(len(prompts))))
    yield data.select([]).union(out), engine, config
    episodes.close()


@pytest.mark.parametrize("number", range(len(EPISODES)))
def test_tokens_masks_and_observations(number: int, generated: Any, tokenizer: Any) -> None:
    batch = generated[0]
    tensors, columns = batch.tensors(), batch.non_tensor_batch
    _, parts, (stop_reason, turns, valid, searches, _) = EPISODES[number]
    mask = [own for _, tokens, own in parts for _ in range(tokens)]
    length = len(mask)
    width = tensors["responses"].shape[1]
    assert tensors["info_mask"][number].tolist() == mask + [0] * (width - length)
    assert tensors["attention_mask"][number, -width:].tolist() == [1] * length + [0] * (width - length)
    text = tokenizer.decode(tensors["responses"][number, :length].tolist(), skip_special_tokens=True)
    assert text == "".join(part for part, _, _ in parts)
    wanted = [LOG_PROB if own else 0.0 for own in mask]
    assert tensors["rollout_log_probs"][number, :length].tolist() == wanted
    assert (columns["stop_reason"][number], columns["num_turns"][number]) == (stop_reason, turns)
    assert (columns["num_valid_actions"][number], columns["num_calls"][number]) == (valid, searches)
    assert int(tensors["policy_version"][number]) == 7


def test_rewards_are_those_of_the_answers_the_model_wrote(generated: Any, tokenizer: Any) -> None:
    outcome = RewardManager(tokenizer, qa_em)(generated[0])
    assert outcome.scores.tolist() == [score for _, _, (*_, score) in EPISODES]


def test_metrics_by_hand(generated: Any) -> None:
    batch, _, config = generated
    metrics = prepare_episodes(batch.select_idxs(list(range(10))), config)
    expected = {
        "env/number_of_actions/mean": 2.3,  # (1+2+3+2+2+2+3+3+3+2) / 10
        "env/number_of_actions/max": 3.0,
        "env/number_of_actions/min": 1.0,
        "env/finish_ratio": 0.7,  # all but 6, 7 and 8
        "env/number_of_valid_action": 1.6,  # (1+2+3+2+1+1+3+0+1+2) / 10
        "env/ratio_of_valid_action": (1 + 1 + 1 + 1 + 0.5 + 0.5 + 1 + 0 + 1 / 3 + 1) / 10,
        "env/number_of_valid_search": 0.8,  # (0+1+2+1+0+0+2+0+1+1) / 10
        "env/error_ratio": 0.0,
        # written: 25 + 55 + 82 + 52 + 65 + 33 + 75 + 6 + 30 + 39
        "state_tokens/total": 462.0,
        # observed: 0 + 85 + 186 + 88 + 160 + 160 + 170 + 320 + 246 + 160 = 1575
        "state_tokens/coverage": 462 / 2037,
    }
    assert metrics == pytest.approx(expected)


def test_score_and_advantage_land_on_what_the_model_wrote(generated: Any, tokenizer: Any) -> None:
    batch, _, config = generated
    batch = batch.select_idxs(list(range(10)))
    prepare_episodes(batch, config)
    scored, outcome = score_batch(batch, RewardManager(tokenizer, qa_em))
    tensors = scored.tensors()
    own = tensors["info_mask"].bool()
    for row, (_, parts, (*_, score)) in enumerate(EPISODES):
        last = sum(tokens for _, tokens, _ in parts) - 1  # every episode here ends with a turn of the model
        assert tensors["token_level_scores"][row].nonzero().flatten().tolist() == ([last] if score else [])
    advantages, _ = compute_grpo_outcome_advantage(
        tensors["token_level_scores"], tensors["response_mask"], scored.non_tensor_batch["uid"]
    )
    assert not advantages[~own].any()
    # group q0 scored 1 1 1 0 1: mean 0.8, deviation sqrt(0.2)
    assert advantages[0, 0].item() == pytest.approx(0.2 / np.sqrt(0.2), abs=1e-4)
    assert advantages[3, 0].item() == pytest.approx(-0.8 / np.sqrt(0.2), abs=1e-4)
    samples = make_samples(scored, outcome, tokenizer.decode)
    assert samples[2].turns == 3 and samples[2].extra["num_calls"] == 2


def test_without_state_masking_observations_are_trained_on(generated: Any) -> None:
    batch, _, _ = generated
    batch = batch.select_idxs(list(range(10)))
    config = Config()
    config.actor_rollout_ref.actor.state_masking = False
    metrics = prepare_episodes(batch, config)
    assert metrics["state_tokens/coverage"] == 1.0
    assert int(batch.tensors()["response_mask"].sum()) == 2037


def test_no_sampled_token_is_ever_encoded_again(generated: Any) -> None:
    """Each turn's prompt begins with the very tokens of the turn before."""
    prompts = sorted((prompt for prompt in generated[1].prompts), key=len)
    later = [prompt for prompt in prompts if any(prompt[: len(p)] == p for p in prompts if len(p) < len(prompt))]
    assert len(later) == 23 - 10
