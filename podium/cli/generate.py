"""`podium generate` and `podium chat`: see what a model writes, with the native rollout engine."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from podium.errors import ConfigError

if TYPE_CHECKING:
    from podium.cli.writer import Writer

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

GENERATE_EPILOG = """\
The first word is a run folder, a checkpoint, a Hugging Face folder or
builtin:tiny; the others are prompts. Without a prompt they are read from
standard input, one a line.

examples:
  podium generate builtin:tiny "12+34="
  podium generate runs/podium/quickstart "7+88=" --n 4 --temperature 1
  podium generate runs/podium/quickstart --step 20 < prompts.txt
"""
CHAT_EPILOG = """\
Type a message, and an empty line or Ctrl-D to leave. /new starts over.

examples:
  podium chat runs/podium/quickstart
  podium chat ./my-model --system "Answer briefly." --temperature 0.7
"""


def add_parsers(commands: Commands) -> None:
    generate = _add(commands, "generate", "what a model writes for prompts", "model, prompts", GENERATE_EPILOG)
    generate.add_argument("--n", type=int, default=1, help="samples per prompt (default: 1)")
    generate.add_argument("--raw", action="store_true", help="no chat template: the prompt's text as it is")
    generate.set_defaults(run=run_generate)
    chat = _add(commands, "chat", "talk with a model in the terminal", "model", CHAT_EPILOG)
    chat.add_argument("--system", help="a system message to begin with")
    chat.set_defaults(run=run_chat)


def _add(commands: Commands, name: str, purpose: str, words: str, epilog: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=purpose,
        description=f"{purpose[0].upper()}{purpose[1:]}.",
        epilog=epilog,
        usage=f"podium {name} MODEL {'[prompt ...] [--n N] ' if name == 'generate' else ''}[--step N] [options]",
    )
    parser.add_argument("words", nargs="*", metavar=words, help="the model first")
    parser.add_argument("--step", type=int, help="a run's checkpoint of this step (default: the newest)")
    parser.add_argument("--max-tokens", type=int, default=256, help="tokens of a response (default: 256)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy (the default)")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    return parser


def run_generate(arguments: argparse.Namespace) -> int:
    model, *prompts = _model_first(arguments)
    if not prompts:
        prompts = [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if not prompts:
        raise ConfigError('podium generate needs a prompt, for example: podium generate builtin:tiny "12+34="')
    writer = _open(model, arguments)
    answers = writer.answer(
        [writer.encode(prompt, arguments.raw) for prompt in prompts], _sampling(arguments), arguments.n, arguments.seed
    )
    for prompt, texts in zip(prompts, answers, strict=True):
        for text in texts:
            sys.stdout.write(f"{prompt}\t{text}\n" if len(prompts) > 1 or arguments.n > 1 else f"{text}\n")
    return 0


def run_chat(arguments: argparse.Namespace) -> int:
    model, *rest = _model_first(arguments)
    if rest:
        raise ConfigError(f"podium chat takes one model, not {' '.join(rest)!r} beside it")
    writer = _open(model, arguments)
    begin = [{"role": "system", "content": arguments.system}] if arguments.system else []
    messages: list[dict[str, Any]] = list(begin)
    sys.stdout.write(f"{model}; an empty line ends, /new starts over\n")
    while line := _ask():
        if line == "/new":
            messages = list(begin)
            continue
        messages.append({"role": "user", "content": line})
        text = writer.answer([writer.encode(messages)], _sampling(arguments), 1, arguments.seed)[0][0]
        messages.append({"role": "assistant", "content": text})
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    return 0


def _ask() -> str:
    sys.stdout.write("> ")
    sys.stdout.flush()
    return sys.stdin.readline().strip()


def _model_first(arguments: argparse.Namespace) -> list[str]:
    if not arguments.words:
        raise ConfigError("name a model first: a run folder, a checkpoint, a Hugging Face folder or builtin:tiny")
    return list(arguments.words)


def _open(model: str, arguments: argparse.Namespace) -> Writer:
    from podium.cli.writer import Writer

    return Writer(model, arguments.step, arguments.device)


def _sampling(arguments: argparse.Namespace) -> Any:
    from podium.engines.rollout.base import SamplingParams

    return SamplingParams(arguments.max_tokens, temperature=arguments.temperature, top_p=arguments.top_p)
