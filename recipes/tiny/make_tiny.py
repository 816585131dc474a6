"""Make the built-in tiny model: a character-level tokenizer and a Qwen2 model of about 1M parameters.

    python recipes/tiny/make_tiny.py podium/models/tiny

The weights come from a short supervised warm start on the train splits of the built-in tasks, stopped on purpose long
before the model masters them: it knows how each task is answered and is often wrong, so that reinforcement has
something to teach. Validation problems are never seen here. A few minutes on two cores; seeded, but another
number of threads or another torch build rounds differently and gives slightly other weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
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
STOP_AT = {"addition": 0.30, "reverse": 0.30, "countdown": 0.15}  # greedy accuracy on train problems
EXAMPLES_PER_STEP, EXAMPLES_AFTER_STOP = 64, 4
PEAK_LR = 2e-3
IGNORED = -100
logger = logging.getLogger("make_tiny")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, so that no text is lost; a role line is one token, which keeps prompts short."""
    words = SPECIAL_TOKENS + ROLE_TOKENS + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
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
        model_max_length=2048,
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
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def encode(tokenizer: PreTrainedTokenizerFast, problem: Problem) -> tuple[list[int], list[int]]:
    """Prompt and answer tokens."""
    messages = [{"role": "user", "content": problem.question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    answer = problem.answer + tokenizer.eos_token
    return tokenizer.encode(prompt), tokenizer.encode(answer)


def make_batch(pairs: list[tuple[list[int], list[int]]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
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
def accuracy(model: Qwen2ForCausalLM, pairs: list[tuple[list[int], list[int]]], pad: int) -> float:
    """Share of answers whose every token is the likeliest one: greedy decoding, in one pass."""
    input_ids, labels = make_batch(pairs, pad)
    best = model(input_ids=input_ids, use_cache=False).logits[:, :-1].argmax(-1)
    return ((best == labels[:, 1:]) | (labels[:, 1:] == IGNORED)).all(-1).float().mean().item()


def warm_start(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, max_steps: int) -> None:
    """Train on answers. A task that reached its stop gets few more examples; the end is when all have."""
    pad = tokenizer.pad_token_id
    pools = {
        name: [encode(tokenizer, problem) for problem in itertools.islice(get_task(name).problems("train", seed), 20_000)]
        for name in STOP_AT
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    chooser = torch.Generator().manual_seed(seed)
    reached = dict.fromkeys(pools, 0.0)
    for step in range(1, max_steps + 1):
        optimizer.param_groups[0]["lr"] = PEAK_LR * min(1.0, step / 50)
        counts = {n: EXAMPLES_PER_STEP if reached[n] < STOP_AT[n] else EXAMPLES_AFTER_STOP for n in pools}
        losses = {}
        for name, count in counts.items():
            chosen = torch.randint(len(pools[name]), (count,), generator=chooser).tolist()
            input_ids, labels = make_batch([pools[name][i] for i in chosen], pad)
            loss = model(input_ids=input_ids, labels=labels, use_cache=False).loss
            (loss * count / sum(counts.values())).backward()
            losses[name] = round(loss.item(), 3)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            reached = {name: round(accuracy(model, pool[:256], pad), 3) for name, pool in pools.items()}
            logger.info("step %d loss %s accuracy %s", step, losses, reached)
            if all(reached[name] >= STOP_AT[name] for name in pools):
                return


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=1.0
    )
    model.to(torch.bfloat16).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=2000)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(args.seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    logger.info("%d parameters, %d tokens", sum(p.numel() for p in model.parameters()), len(tokenizer))
    warm_start(model, tokenizer, args.seed, args.max_steps)
    save(model, tokenizer, args.folder)
    logger.info("saved %s", json.dumps(sorted(path.name for path in args.folder.iterdir())))


if __name__ == "__main__":
    main()
