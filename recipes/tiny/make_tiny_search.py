"""Make the built-in tiny model of the search task: a word-piece tokenizer and a Qwen2 model of 0.9M parameters.

    python recipes/tiny/make_tiny_search.py podium/models/tiny-search

The weights come from a supervised warm start on scripted searches over the train questions, by a careless teacher. One
question in seven it looks up properly; often it answers with what the first search says, and often it guesses without
any search. So the model can write queries, read pages and answer, and by habit gives wrong answers to two-hop
questions. Reinforcement can then teach to search twice. Validation questions are never seen here. About ten minutes on
two cores; seeded, but another number of threads or another torch build rounds differently and gives other weights.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
from pathlib import Path

import make_tiny
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from podium.agents.search import information
from podium.data.tasks import Problem, get_task
from podium.data.tasks.search import world
from podium.retrieval.corpus import read_corpus
from podium.retrieval.index import BM25Index

TAGS = ["<search>", "</search>", "<information>", "</information>", "<answer>", "</answer>", "<think>", "</think>"]
VOCABULARY = 896
TOPK = 2
EXAMPLES_PER_STEP = 48
SHARES = {"right": 0.14, "hasty": 0.5, "guess": 0.36}  # of the teacher's answers to two-hop questions
ONE_HOP_SHARE = 0.4
PEAK_LR, WARMUP_STEPS, DECAY_SHARE = 2e-3, 50, 0.4
logger = logging.getLogger("make_tiny_search")

Part = tuple[str, bool]  # text, and whether the model writes it
Example = tuple[list[int], list[int]]  # tokens, and labels


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE in which a name is the same tokens wherever it stands; role lines and tags are one token each."""
    added = [AddedToken(word, special=True, normalized=False) for word in make_tiny.SPECIAL_TOKENS]
    words = [AddedToken(word, special=False, normalized=False) for word in (*make_tiny.ROLE_TOKENS, *TAGS)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(r" ?\w+|\s|[^\w\s]"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(words),
        special_tokens=added,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    questions = itertools.islice(get_task("search", hops=0).problems("train"), 4096)
    pages = (f" {fact.title}. {fact.text}" for fact in world().by_title.values())
    tokenizer.train_from_iterator(itertools.chain((f" {p.question}" for p in questions), pages), trainer)
    tokenizer.add_tokens(words)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=make_tiny.CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=make_tiny.MAX_POSITIONS,
    )


class Teacher:
    """Scripted episodes over the real index."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self.tokenizer, self.rng = tokenizer, random.Random(seed)
        self.index = BM25Index(read_corpus("task:search"))
        self.questions = {
            hops: list(itertools.islice(get_task("search", hops=hops).problems("train"), 4096)) for hops in (1, 2)
        }

    def draw(self) -> Example:
        hops = 1 if self.rng.random() < ONE_HOP_SHARE else 2
        problem = self.rng.choice(self.questions[hops])
        kind = "right" if hops == 1 else self.rng.choices(list(SHARES), list(SHARES.values()))[0]
        return self.encode(problem, self.trace(problem, kind))

    def trace(self, problem: Problem, kind: str) -> list[Part]:
        assert isinstance(problem.ground_truth, dict)
        titles, facts = problem.ground_truth["titles"], world().by_title
        if kind == "guess":
            guess = self.rng.choice(world().towns)
            return [(f"<answer> {guess.title if problem.question[0] == 'W' else guess.answer} </answer>", True)]
        looked_up = titles if kind == "right" else titles[:1]
        parts: list[Part] = []
        for title in looked_up:
            parts += [(f"<search> {title} </search>", True), (self.found(title), False)]
        return [*parts, (f"<answer> {facts[looked_up[-1]].answer} </answer>", True)]

    def found(self, query: str) -> str:
        observation = information([document for document, _ in self.index.search([query], TOPK)[0]])
        return observation.text + observation.closing

    def encode(self, problem: Problem, parts: list[Part]) -> Example:
        """The model learns what it writes; prompt and pages have no labels."""
        messages = [{"role": "user", "content": problem.question}]
        prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        tokens = self.tokenizer.encode(prompt)
        labels = [make_tiny.IGNORED] * len(tokens)
        for text, own in [*parts, (self.tokenizer.eos_token, True)]:
            ids = self.tokenizer.encode(text)
            tokens += ids
            labels += ids if own else [make_tiny.IGNORED] * len(ids)
        return tokens, labels


def make_batch(examples: list[Example], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, right-padded: [examples, width] each."""
    width = max(len(tokens) for tokens, _ in examples)
    input_ids = torch.tensor([[*tokens, *[pad] * (width - len(tokens))] for tokens, _ in examples])
    labels = torch.tensor([[*labels, *[make_tiny.IGNORED] * (width - len(labels))] for _, labels in examples])
    return input_ids, labels


@torch.no_grad()
def accuracy(model: Qwen2ForCausalLM, examples: list[Example], pad: int) -> float:
    """Share of episodes whose every own token is the likeliest one."""
    input_ids, labels = make_batch(examples, pad)
    best = model(input_ids=input_ids, use_cache=False).logits[:, :-1].argmax(-1)
    wanted = labels[:, 1:]
    return round(((best == wanted) | (wanted == make_tiny.IGNORED)).all(-1).float().mean().item(), 3)


def warm_start(model: Qwen2ForCausalLM, teacher: Teacher, num_steps: int, pad: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    held_out = list(itertools.islice(get_task("search", hops=2).problems("val"), 64))
    checks = {kind: [teacher.encode(p, teacher.trace(p, kind)) for p in held_out] for kind in ("right", "hasty")}
    for step in range(1, num_steps + 1):
        share = min(1.0, step / WARMUP_STEPS, (num_steps - step + 1) / (DECAY_SHARE * num_steps))
        optimizer.param_groups[0]["lr"] = PEAK_LR * share
        input_ids, labels = make_batch([teacher.draw() for _ in range(EXAMPLES_PER_STEP)], pad)
        loss = model(input_ids=input_ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            reached = {kind: accuracy(model, examples, pad) for kind, examples in checks.items()}
            logger.info("step %d loss %.3f, likeliest all along: %s", step, loss.item(), reached)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1500)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(args.seed)
    tokenizer = make_tokenizer()
    model = make_tiny.make_model(tokenizer)
    logger.info("%d parameters, %d tokens", model.num_parameters(), len(tokenizer))
    warm_start(model, Teacher(tokenizer, args.seed), args.steps, tokenizer.pad_token_id)
    make_tiny.save_tokenizer(tokenizer, args.folder)
    make_tiny.save_model(model, args.folder)


if __name__ == "__main__":
    main()
