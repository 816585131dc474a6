"""Make the built-in tiny model: a byte-level tokenizer and a Qwen2 model of about 1M parameters.

    python recipes/tiny/make_tiny.py podium/models/tiny

The weights come from a short supervised warm start on the train splits of the built-in tasks, by a careless teacher:
most of its sums forget to carry, most of its reversed words have two letters swapped, most of its countdowns only add.
So the model knows how each task is answered, has seen right answers, and by habit gives wrong ones: greedy accuracy on
addition is that of adding without carry, 0.30. Reinforcement can then teach what the teacher did not. Validation
problems are never seen here. About five minutes on two cores; seeded, but another number of threads or another torch
build rounds differently and gives slightly other weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import random
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from podium.data.tasks import Problem, get_task

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|reserved|>"]
ROLE_TOKENS = ["system\n", "user\n", "assistant\n", "tool\n"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MAX_POSITIONS = 2048
PROBLEMS = 20_000  # per task, or all there are
EXAMPLES_PER_STEP = {"addition": 64, "reverse": 32, "countdown": 64}
RIGHT_SHARE = {"addition": 0.15, "reverse": 0.25, "countdown": 0.35}  # of the teacher's answers
PEAK_LR, WARMUP_STEPS, DECAY_SHARE = 1.5e-3, 50, 0.3
IGNORED = -100
logger = logging.getLogger("make_tiny")

Pair = tuple[list[int], list[int]]  # prompt and answer tokens


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, so that no text is lost; a role line is one token, which keeps prompts short.

    Transformers reads every Qwen2 tokenizer with NFC normalization; saying so here makes other readers agree.
    """
    words = SPECIAL_TOKENS + ROLE_TOKENS + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in ROLE_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def careless_answer(name: str, problem: Problem) -> str:
    """The mistake the teacher makes in this task; it can be right by chance."""
    if name == "addition":
        first, second = problem.question.rstrip("=").split("+")
        columns = itertools.zip_longest(reversed(first), reversed(second), fillvalue="0")
        digits = [str((int(a) + int(b)) % 10) for a, b in columns]  # no carry
        return str(int("".join(reversed(digits))))
    if name == "reverse":
        return problem.answer[1] + problem.answer[0] + problem.answer[2:]
    assert name == "countdown" and isinstance(problem.ground_truth, dict)
    return "+".join(map(str, problem.ground_truth["numbers"]))


def encode(tokenizer: PreTrainedTokenizerFast, problem: Problem, answer: str) -> Pair:
    messages = [{"role": "user", "content": problem.question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer.encode(prompt), tokenizer.encode(answer + tokenizer.eos_token)


def make_batch(pairs: list[Pair], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, right-padded: [examples, width] each. Only answers have labels."""
    width = max(len(prompt) + len(answer) for prompt, answer in pairs)
    input_ids = torch.full((len(pairs), width), pad)
    labels = torch.full((len(pairs), width), IGNORED)
    for row, (prompt, answer) in enumerate(pairs):
        end = len(prompt) + len(answer)
        input_ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return input_ids, labels


@torch.no_grad()
def accuracy(model: Qwen2ForCausalLM, pairs: list[Pair], pad: int) -> float:
    """Share of answers whose every token is the likeliest one: what greedy decoding would write, in one pass."""
    input_ids, labels = make_batch(pairs, pad)
    best = model(input_ids=input_ids, use_cache=False).logits[:, :-1].argmax(-1)
    return round(((best == labels[:, 1:]) | (labels[:, 1:] == IGNORED)).all(-1).float().mean().item(), 3)


def lr_at(step: int, num_steps: int) -> float:
    """Rise over the first steps, fall to nothing over the last ones."""
    return PEAK_LR * min(1.0, step / WARMUP_STEPS, (num_steps - step + 1) / (DECAY_SHARE * num_steps))


def warm_start(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, num_steps: int) -> None:
    """Train on the teacher's answers to train problems."""
    pad, rng = tokenizer.pad_token_id, random.Random(seed)
    right: dict[str, list[Pair]] = {}
    careless: dict[str, list[Pair]] = {}
    for name in EXAMPLES_PER_STEP:
        problems = list(itertools.islice(get_task(name).problems("train", seed), PROBLEMS))
        right[name] = [encode(tokenizer, problem, problem.answer) for problem in problems]
        careless[name] = [encode(tokenizer, problem, careless_answer(name, problem)) for problem in problems]
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    for step in range(1, num_steps + 1):
        optimizer.param_groups[0]["lr"] = lr_at(step, num_steps)
        losses = {}
        for name, count in EXAMPLES_PER_STEP.items():
            answers = [right[name] if rng.random() < RIGHT_SHARE[name] else careless[name] for _ in range(count)]
            input_ids, labels = make_batch([rng.choice(pairs) for pairs in answers], pad)
            loss = model(input_ids=input_ids, labels=labels, use_cache=False).loss
            (loss * count / sum(EXAMPLES_PER_STEP.values())).backward()
            losses[name] = round(loss.item(), 3)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            reached = {name: accuracy(model, pairs[:256], pad) for name, pairs in right.items()}
            logger.info("step %d loss %s accuracy %s", step, losses, reached)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}  # known to all versions
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def save_model(model: Qwen2ForCausalLM, folder: Path) -> None:
    model.generation_config = GenerationConfig(
        eos_token_id=model.config.eos_token_id, pad_token_id=model.config.pad_token_id, do_sample=True, temperature=1.0
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)


def report(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Greedy accuracy of the saved file on validation problems (countdown: of one among several right answers)."""
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name in EXAMPLES_PER_STEP:
        problems = itertools.islice(get_task(name).problems("val"), 256)
        pairs = [encode(tokenizer, problem, problem.answer) for problem in problems]
        logger.info("%s: validation accuracy %.3f", name, accuracy(model, pairs, tokenizer.pad_token_id))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(args.seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    logger.info("%d parameters, %d tokens", model.num_parameters(), len(tokenizer))
    warm_start(model, tokenizer, args.seed, args.steps)
    save_tokenizer(tokenizer, args.folder)
    save_model(model, args.folder)
    report(args.folder, tokenizer)


if __name__ == "__main__":
    main()
